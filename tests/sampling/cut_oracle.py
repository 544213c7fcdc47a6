"""Legal cuts of a row, and what they prove, by their definition in ipc/layout.h."""

from __future__ import annotations

import numpy as np

from hybridgen.ipc.logit_ring import Cut, CutState
from hybridgen.request import SamplingParams
from hybridgen.sampling import _native, reference
from tests.sampling.rows import Floats

LOG2_E = 1.4426950408889634


def weights(logits: Floats, top: float, temperature: float) -> Floats:
    """Weight of each logit, as samplers count it; same shape."""
    padded = np.full(-(-len(logits) // 16) * 16, -np.inf, np.float32)
    padded[: len(logits)] = logits
    out = np.empty_like(padded)
    _native.weights(padded, top, float(np.float32(temperature)), out)
    return out[: len(logits)]


def make_cut(logits: Floats, temperature: float, wanted: int, capacity: int, step: int = 1) -> Cut:
    """The cut of a row whose threshold is its ``wanted``-th logit, or the least finite one."""
    is_greedy = np.float32(temperature) < reference.MIN_TEMPERATURE
    scale = 0.0 if is_greedy else float(np.float32(LOG2_E / float(np.float32(temperature))))
    nothing = Cut(CutState.NONE, -1, 0.0, 0.0, scale, 0.0, step)
    if not reference.is_valid(logits):
        return nothing
    finite = np.sort(logits[np.isfinite(logits)])[::-1]
    threshold = finite[min(wanted, len(finite)) - 1]
    ids = np.flatnonzero(logits >= threshold)
    if len(ids) > capacity:
        return nothing
    top = float(finite[0])
    total = 0.0 if is_greedy else float(weights(logits, top, temperature).sum(dtype=np.float64))
    values = logits[ids].tolist()
    return Cut(
        CutState.CANDIDATES, -1, top, float(threshold), scale, total, step, values, ids.tolist()
    )


def proves(cut: Cut, params: SamplingParams, vocab_size: int) -> bool:
    """Whether no token outside the cut could be chosen."""
    if cut.state == CutState.NONE:
        return False
    if cut.scale == 0.0:
        return True
    if 0 < params.top_k < vocab_size:
        return len(cut.ids) >= params.top_k
    values = np.array([*cut.values, cut.threshold], np.float32)
    *inside, at_threshold = weights(values, cut.top, params.temperature).astype(np.float64)
    share = min(1.0, float(np.float32(params.top_p)))
    is_rest_dropped = float(np.float32(params.min_p)) > at_threshold * (1 + 1e-5) + 2.0**-34
    return is_rest_dropped or float(np.sum(inside)) >= share * cut.total
