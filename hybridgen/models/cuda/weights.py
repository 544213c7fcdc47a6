"""Weights on the device, fused as the products take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from hybridgen.models.config import ModelConfig
from hybridgen.models.cuda.layers import Projection
from hybridgen.models.cuda.upload import Uploader
from hybridgen.models.weights import check_tensors

Progress = Callable[[float], None]

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
    """Behind the final norm; the embedding itself where both are tied."""
    layers: list[LayerWeights]


def load_device_weights(
    config: ModelConfig,
    tensors: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
    device: torch.device,
    on_progress: Progress,
) -> DeviceWeights:
    """Copy ``tensors`` (on the CPU, any float dtype) to the device.

    Raises:
        WeightsMismatch: a tensor is missing or has another shape.
    """
    check_tensors(config, tensors)
    uploader = Uploader(dtype, device, config.num_parameters, on_progress)
    return _Builder(
        config, dtype, device, lambda name, out: uploader.copy(tensors[name], out)
    ).build()


def random_device_weights(
    config: ModelConfig, dtype: torch.dtype, device: torch.device, seed: int = 0
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
            spread = LOGIT_SPREAD if name == "lm_head.weight" else 1.0
            out.normal_(0.0, spread * out.shape[1] ** -0.5, generator=generator)

    return _Builder(config, dtype, device, fill).build()


class _Builder:
    """Allocates each fused matrix and lets ``fill`` write the parts."""

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        fill: Callable[[str, torch.Tensor], None],
    ) -> None:
        self._config = config
        self._shapes = config.weight_shapes()
        self._dtype = dtype
        self._device = device
        self._fill = fill

    def build(self) -> DeviceWeights:
        config = self._config
        embedding = self._stack("model.embed_tokens.weight")
        layers = [self._layer(f"model.layers.{i}.") for i in range(config.num_layers)]
        head = embedding if config.is_embedding_tied else self._stack("lm_head.weight")
        norm = self._stack("model.norm.weight")
        lm_head = Projection(head, norm=norm, epsilon=config.rms_norm_eps)
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
        return Projection(
            weight=self._stack(*(name + "weight" for name in names)),
            bias=self._stack(*(name + "bias" for name in names)) if has_bias else None,
            norm=self._stack(norm) if norm else None,
            epsilon=self._config.rms_norm_eps,
        )

    def _stack(self, *names: str) -> torch.Tensor:
        """One tensor with these below each other."""
        num_rows = sum(self._shapes[name][0] for name in names)
        shape = (num_rows, *self._shapes[names[0]][1:])
        whole = torch.empty(shape, dtype=self._dtype, device=self._device)
        start = 0
        for name in names:
            stop = start + self._shapes[name][0]
            self._fill(name, whole[start:stop])
            start = stop
        return whole
