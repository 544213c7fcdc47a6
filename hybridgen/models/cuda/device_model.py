"""A model on the device: everything that steps read."""

from __future__ import annotations

from typing import NamedTuple

from hybridgen.models.config import ModelConfig
from hybridgen.models.cuda.weights import DeviceWeights
from hybridgen.models.kernels.paged_cache import PagedCache


class DeviceModel(NamedTuple):
    """Weights and KV cache, one ``PagedCache`` per layer."""

    config: ModelConfig
    weights: DeviceWeights
    caches: list[PagedCache]
