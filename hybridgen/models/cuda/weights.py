"""Weights on the device, fused as the products take them, quantized on the way if asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

import torch

from hybridgen.models.config import ModelConfig
from hybridgen.models.cuda.int8_rows import quantize_rows
from hybridgen.models.cuda.layers import Projection
from hybridgen.models.cuda.upload import Uploader
from hybridgen.models.weights import check_tensors

Progress = Callable[[float], None]

EMBEDDING, LM_HEAD = "model.embed_tokens.weight", "lm_head.weight"
#: Standard deviation of random models' logits.
LOGIT_SPREAD = 4.0


class LayerWeights(NamedTuple):
    """One block."""

    qkv: Projection
    """[q heads, k heads, v heads] × hidden, behind the attention norm."""
    output: Projection
    gate_up: Projection
    """Gated, behind the MLP norm."""
    down: Projection


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
        tensors: on the CPU, any float dtype.
        dtype: of the weights on the device; INT8 matrices are quantized from it.
        device: where to.
        on_progress: called with the share done, 0 … 1.
        is_int8: quantize all matrices but the embedding.
        loading_cpus: see ``Uploader``.

    Raises:
        WeightsMismatch: a tensor is missing or has another shape.
    """
    check_tensors(config, tensors)
    with Uploader(device, config.num_parameters, on_progress, loading_cpus) as uploader:
        return _Builder(
            config,
            dtype,
            device,
            lambda name, out: uploader.copy(tensors[name], out),
            is_int8=is_int8,
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
            out.fill_(1.0)
        elif out.dim() == 1:
            out.zero_()
        else:
            spread = LOGIT_SPREAD if name == LM_HEAD else 1.0
            out.normal_(0.0, spread * out.shape[1] ** -0.5, generator=generator)

    return _Builder(config, dtype, device, fill, is_int8=is_int8).build()


class _Builder:
    """Allocates each fused matrix and lets ``fill`` write the parts.

    INT8 matrices are made from one part after the other, in the same space, on the current stream.
    """

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        fill: Callable[[str, torch.Tensor], None],
        *,
        is_int8: bool = False,
    ) -> None:
        self._config = config
        self._shapes = config.weight_shapes()
        self._dtype = dtype
        self._device = device
        self._fill = fill
        self._is_int8 = is_int8
        sizes = [math.prod(shape) for name, shape in self._shapes.items() if name != EMBEDDING]
        self._space = torch.empty(max(sizes) if is_int8 else 0, dtype=dtype, device=device)

    def build(self) -> DeviceWeights:
        config = self._config
        embedding = self._stack(EMBEDDING)
        layers = [self._layer(f"model.layers.{i}.") for i in range(config.num_layers)]
        head, scales = self._head(embedding)
        norm = self._stack("model.norm.weight").float()
        lm_head = Projection(head, scales, norm=norm, epsilon=config.rms_norm_eps)
        return DeviceWeights(embedding, lm_head, layers)

    def _layer(self, prefix: str) -> LayerWeights:
        config = self._config
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        qkv = [f"{attention}{name}_proj." for name in "qkv"]
        gate_up = [f"{mlp}{name}_proj." for name in ("gate", "up")]
        output, down = [attention + "o_proj."], [mlp + "down_proj."]
        return LayerWeights(
            qkv=self._projection(qkv, config.has_qkv_bias, prefix + "input_layernorm.weight"),
            output=self._projection(output, config.has_output_bias),
            gate_up=self._projection(
                gate_up, config.has_mlp_bias, prefix + "post_attention_layernorm.weight"
            )._replace(is_gated=True),
            down=self._projection(down, config.has_mlp_bias),
        )

    def _projection(self, names: list[str], has_bias: bool, norm: str = "") -> Projection:
        weight, scales = self._matrix(*(name + "weight" for name in names))
        return Projection(
            weight=weight,
            scales=scales,
            bias=self._stack(*(name + "bias" for name in names)) if has_bias else None,
            norm=self._stack(norm).float() if norm else None,
            epsilon=self._config.rms_norm_eps,
        )

    def _head(self, embedding: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        if not self._config.is_embedding_tied:
            return self._matrix(LM_HEAD)
        if not self._is_int8:
            return embedding, None
        values, scales = self._empty_int8(embedding.shape)
        quantize_rows(embedding, values, scales)
        return values, scales

    def _matrix(self, *names: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        """These below each other, and their scales if they are INT8."""
        if not self._is_int8:
            return self._stack(*names), None
        values, scales = self._empty_int8(self._stacked_shape(names))
        for name, rows in self._rows(names):
            shape = self._shapes[name]
            part = self._space[: math.prod(shape)].view(shape)
            self._fill(name, part)
            quantize_rows(part, values[rows], scales[rows])
        return values, scales

    def _empty_int8(self, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        return (
            torch.empty(shape, dtype=torch.int8, device=self._device),
            torch.empty(shape[0], dtype=torch.float32, device=self._device),
        )

    def _stack(self, *names: str) -> torch.Tensor:
        """One tensor with these below each other."""
        whole = torch.empty(self._stacked_shape(names), dtype=self._dtype, device=self._device)
        for name, rows in self._rows(names):
            self._fill(name, whole[rows])
        return whole

    def _stacked_shape(self, names: tuple[str, ...]) -> tuple[int, ...]:
        num_rows = sum(self._shapes[name][0] for name in names)
        return (num_rows, *self._shapes[names[0]][1:])

    def _rows(self, names: tuple[str, ...]) -> Iterator[tuple[str, slice]]:
        """Each name with its place in the stack of them."""
        start = 0
        for name in names:
            stop = start + self._shapes[name][0]
            yield name, slice(start, stop)
            start = stop
