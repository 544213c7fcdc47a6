"""What the tensors of a Hugging Face folder are once they are fused: written out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

_PARTS = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}


def fused(weights: dict[str, Any]) -> dict[str, Any]:
    """q, k, v below each other, gate and up too; the rest as it is."""
    found = dict(weights)
    for whole, parts in _PARTS.items():
        firsts = [name for name in weights if f".{parts[0]}." in name]
        for first in firsts:
            names = [first.replace(parts[0], part) for part in parts]
            found[first.replace(parts[0], whole)] = np.concatenate([found.pop(n) for n in names])
    return found
