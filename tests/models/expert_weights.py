"""Small random experts, and what they make of their input in float64."""

from __future__ import annotations

import torch

from hybridgen.models.config import Experts
from hybridgen.models.reference import swiglu
from tests.models.tiny_model import tiny_config

HIDDEN = 40
MLP = "model.layers.0.mlp."

SHAPES = [
    Experts(num_experts=4, num_chosen=2, size=24),
    Experts(num_experts=9, num_chosen=1, size=50),
    Experts(num_experts=13, num_chosen=5, size=17, is_share_normalized=False),
    Experts(num_experts=8, num_chosen=3, size=16, shared_size=70, is_share_normalized=False),
]


def random_experts(
    experts: Experts, hidden_size: int = HIDDEN, seed: int = 0
) -> dict[str, torch.Tensor]:
    """Name below ``mlp.`` → float32; the router's logits are some units apart."""
    generator = torch.Generator().manual_seed(seed)
    shapes = tiny_config(hidden_size=hidden_size, experts=experts).weight_shapes()
    return {
        name.removeprefix(MLP): torch.randn(shape, generator=generator) * shape[-1] ** -0.5
        for name, shape in shapes.items()
        if name.startswith(MLP)
    }


def mixed(experts: Experts, weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """[n, hidden_size]: token by token, expert by expert, as the docstring of ``Experts`` says."""
    wide = {name: tensor.double() for name, tensor in weights.items()}

    def block(gate_up: torch.Tensor, down: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
        return swiglu(*(gate_up @ token).chunk(2)) @ down.T

    rows = []
    for token in x.double():
        shares = (wide["gate.weight"] @ token).softmax(0)
        order = sorted(range(experts.num_experts), key=lambda e, s=shares: (-float(s[e]), e))
        chosen = order[: experts.num_chosen]
        total = shares[chosen].sum() if experts.is_share_normalized else 1.0
        row = torch.zeros_like(token)
        for e in chosen:
            out = block(wide["experts.gate_up_proj"][e], wide["experts.down_proj"][e], token)
            row += shares[e] / total * out
        if experts.shared_size:
            part = [wide[f"shared_expert.{name}_proj.weight"] for name in ("gate_up", "down")]
            row += torch.sigmoid(wide["shared_expert_gate.weight"] @ token) * block(*part, token)
        rows.append(row)
    return torch.stack(rows)
