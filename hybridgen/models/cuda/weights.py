"""Weights on the device as the products take them, quantized on the way if asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import torch

from hybridgen.models.config import Experts, ModelConfig
from hybridgen.models.cuda.int8_rows import quantize_rows
from hybridgen.models.cuda.layers import FeedForward, Projection, Routing
from hybridgen.models.cuda.upload import Uploader
from hybridgen.models.kernels.head_options import HeadOptions
from hybridgen.models.stored_weights import Int8Matrix, StoredWeights
from hybridgen.models.weight_names import EMBEDDING, FINAL_NORM, LM_HEAD, layer_prefix
from hybridgen.models.weights import check_tensors

Progress = Callable[[float], None]

#: Standard deviation of random models' logits.
LOGIT_SPREAD = 4.0


class LayerWeights(NamedTuple):
    """One block."""

    qkv: Projection
    """[q heads, k heads, v heads] × hidden, behind the attention norm."""
    heads: HeadOptions
    output: Projection
    feed_forward: FeedForward


class DeviceWeights(NamedTuple):
    """The whole model."""

    embedding: torch.Tensor
    lm_head: Projection
    """Behind the final norm; the embedding itself where both are tied, or an INT8 copy of it."""
    layers: list[LayerWeights]


def load_device_weights(
    config: ModelConfig,
    tensors: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
    device: torch.device,
    on_progress: Progress,
    *,
    is_int8: bool = False,
    loading_cpus: Collection[int] = (),
) -> DeviceWeights:
    """Copy ``tensors`` to the device.

    Beside the weights it takes one matrix in ``dtype`` there when they become INT8.

    Args:
        config: the model.
        tensors: on the CPU, any float dtype; INT8 matrices of a file are taken as they are where
            that is asked for.
        dtype: of the weights on the device; other INT8 matrices are quantized from it.
        device: where to.
        on_progress: called with the share done, 0 … 1.
        is_int8: quantize all matrices but the embedding and the router.
        loading_cpus: see ``Uploader``.

    Raises:
        WeightsMismatch: a tensor is missing or has another shape.
    """
    check_tensors(config, tensors)
    stored = tensors.int8 if is_int8 and isinstance(tensors, StoredWeights) else {}
    with Uploader(device, config.num_parameters, on_progress, loading_cpus) as uploader:

        def take_int8(name: str) -> Int8Matrix | None:
            matrix = stored.get(name)
            if matrix is None:
                return None
            taken = Int8Matrix(*(torch.empty_like(part, device=device) for part in matrix))
            for source, out in zip(matrix, taken, strict=True):
                uploader.copy(source, out)
            return taken

        return _Builder(
            config,
            dtype,
            device,
            lambda name, out: uploader.copy(tensors[name], out),
            is_int8=is_int8,
            take_int8=take_int8,
        ).build()


def random_device_weights(
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    seed: int = 0,
    *,
    is_int8: bool = False,
) -> DeviceWeights:
    """Weights of the right shapes, made on the device; activations stay near 1.

    Logits spread as a trained model's do (``LOGIT_SPREAD``): how long a sampler works on a row
    depends on that.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def fill(name: str, out: torch.Tensor) -> None:
        if "norm" in name:
            out.fill_(1.0 - config.norm_offset)
        elif out.dim() == 1:
            out.zero_()
        else:
            spread = LOGIT_SPREAD if name == LM_HEAD else 1.0
            out.normal_(0.0, spread * out.shape[-1] ** -0.5, generator=generator)

    return _Builder(config, dtype, device, fill, is_int8=is_int8).build()


class _Builder:
    """Allocates each matrix and lets ``fill`` write it.

    INT8 matrices are made one after the other in the same space, on the current stream.
    """

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        fill: Callable[[str, torch.Tensor], None],
        *,
        is_int8: bool = False,
        take_int8: Callable[[str], Int8Matrix | None] = lambda _name: None,
    ) -> None:
        self._config = config
        self._shapes = config.weight_shapes()
        self._dtype = dtype
        self._device = device
        self._fill = fill
        self._is_int8 = is_int8
        self._take_int8 = take_int8
        sizes = [math.prod(shape) for name, shape in self._shapes.items() if name != EMBEDDING]
        self._space = torch.empty(max(sizes) if is_int8 else 0, dtype=dtype, device=device)

    def build(self) -> DeviceWeights:
        config = self._config
        embedding = self._tensor(EMBEDDING)
        layers = [self._layer(index) for index in range(config.num_layers)]
        head, scales = self._head(embedding)
        lm_head = Projection(
            head,
            scales,
            norm=self._norm(FINAL_NORM),
            epsilon=config.rms_norm_eps,
            softcap=config.logit_softcap,
        )
        return DeviceWeights(embedding, lm_head, layers)

    def _layer(self, index: int) -> LayerWeights:
        config, prefix = self._config, layer_prefix(index)
        attention = prefix + "self_attn."

        def norm(name: str) -> torch.Tensor:
            return self._norm(f"{prefix}{name}_layernorm.weight")

        has_post = config.has_post_norms
        qkv = self._projection(attention + "qkv_proj.weight", config.has_qkv_bias)
        output = self._projection(attention + "o_proj.weight", config.has_output_bias)
        gate_up, down, routing = self._feed_forward(index, prefix + "mlp.")
        return LayerWeights(
            qkv=qkv._replace(norm=norm("input")),
            heads=self._heads(index, attention),
            output=output._replace(post_norm=norm("post_attention") if has_post else None),
            feed_forward=FeedForward(
                gate_up._replace(norm=norm("pre_feedforward" if has_post else "post_attention")),
                down._replace(post_norm=norm("post_feedforward") if has_post else None),
                routing,
            ),
        )

    def _feed_forward(self, index: int, prefix: str) -> FeedForward:
        """The block without its norms."""
        config = self._config
        if config.experts is None or not config.has_experts(index):
            return self._block(prefix, "_proj.weight", config.has_mlp_bias)
        experts = self._block(prefix + "experts.", "_proj")
        return experts._replace(routing=self._routing(config.experts, prefix))

    def _block(self, prefix: str, ending: str, has_bias: bool = False) -> FeedForward:
        gate_up = self._projection(prefix + "gate_up" + ending, has_bias)
        is_gelu = self._config.activation == "gelu_tanh"
        return FeedForward(
            gate_up._replace(is_gated=True, is_gelu=is_gelu),
            self._projection(prefix + "down" + ending, has_bias),
        )

    def _routing(self, experts: Experts, prefix: str) -> Routing:
        names, shared = [prefix + "gate.weight"], None
        if experts.shared_size:
            names.append(prefix + "shared_expert_gate.weight")
            shared = self._block(prefix + "shared_expert.", "_proj.weight")
        size = (experts.num_router_rows, self._config.hidden_size)
        # Never INT8: a rounded logit is another expert.
        router = torch.empty(size, dtype=self._dtype, device=self._device)
        start = 0
        for name in names:
            stop = start + self._shapes[name][0]
            self._fill(name, router[start:stop])
            start = stop
        return Routing(Projection(router), experts.num_chosen, experts.is_share_normalized, shared)

    def _heads(self, index: int, prefix: str) -> HeadOptions:
        config = self._config
        is_normed = config.has_qk_norm
        return HeadOptions(
            scale=config.attention_scale,
            softcap=config.attention_softcap,
            window=config.window(index),
            q_norm=self._norm(prefix + "q_norm.weight") if is_normed else None,
            k_norm=self._norm(prefix + "k_norm.weight") if is_normed else None,
            epsilon=config.rms_norm_eps,
            is_local=config.has_local_rope(index),
        )

    def _projection(self, name: str, has_bias: bool) -> Projection:
        weight, scales = self._matrix(name)
        bias = self._tensor(name.removesuffix("weight") + "bias") if has_bias else None
        return Projection(weight, scales, bias, epsilon=self._config.rms_norm_eps)

    def _head(self, embedding: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        if not self._config.is_embedding_tied:
            return self._matrix(LM_HEAD)
        if not self._is_int8:
            return embedding, None
        return self._quantized(embedding)

    def _matrix(self, name: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        """With its scales if it is INT8."""
        if not self._is_int8:
            return self._tensor(name), None
        if (taken := self._take_int8(name)) is not None:
            return taken
        shape = self._shapes[name]
        whole = self._space[: math.prod(shape)].view(shape)
        self._fill(name, whole)
        return self._quantized(whole)

    def _quantized(self, matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = torch.empty(matrix.shape, dtype=torch.int8, device=self._device)
        scales = torch.empty(matrix.shape[:-1], dtype=torch.float32, device=self._device)
        quantize_rows(matrix.flatten(0, -2), values.flatten(0, -2), scales.flatten())
        return values, scales

    def _norm(self, name: str) -> torch.Tensor:
        """In float32, with what the family adds to it."""
        return self._tensor(name, torch.float32).add_(self._config.norm_offset)

    def _tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        whole = torch.empty(self._shapes[name], dtype=dtype or self._dtype, device=self._device)
        self._fill(name, whole)
        return whole
