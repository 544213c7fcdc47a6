"""What sets the attention of one layer apart from Llama's."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

#: Scores are kept as logarithms to base 2, as the device's exponentials are.
LOG2_E = math.log2(math.e)


class HeadOptions(NamedTuple):
    """Of one layer; the defaults are Llama's.

    Attributes:
        scale: multiplies q · k; 0 for head_dim^-½.
        softcap: c > 0: scaled scores s become c · tanh(s / c).
        window: positions that a token attends to, itself included; 0 for all.
        q_norm, k_norm: float32[head_dim], weights of norms of each head before rotation; both or
            none.
        epsilon: of these norms.
        is_local: rotated by the table for layers with a window.
    """

    scale: float = 0.0
    softcap: float = 0.0
    window: int = 0
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    epsilon: float = 1e-5
    is_local: bool = False

    def score_scale(self, head_dim: int) -> float:
        """Multiplies q · k."""
        return self.scale or head_dim**-0.5

    @property
    def norm_epsilon(self) -> float | None:
        """``epsilon``, if there are norms."""
        return None if self.q_norm is None else self.epsilon

    @property
    def cap_base2(self) -> float | None:
        """The cap of scores that are logarithms to base 2; None: there is none."""
        return self.softcap * LOG2_E if self.softcap else None

    def window_within(self, num_positions: int) -> int | None:
        """The window, or None where a context of so many positions has no more."""
        return self.window if 0 < self.window < num_positions else None


#: Llama's attention.
PLAIN_HEADS = HeadOptions()
