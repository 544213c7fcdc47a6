"""The sampler as plain numpy: what the native kernel must agree with.

It sorts whole rows and computes weights in float64, to be read and trusted, not to be fast. The
definitions are those of row.h; adjusted logits are float32 as in the kernel, because which logit
is larger must not depend on who computes it.

Kernel and oracle round weights differently: the kernel's are float32, each within 2e-7 of its own
logit's, their sums within 2e-6 of the total. So a cut by ``top_p`` or ``min_p``, or a draw, may
fall on the other side where it lies that near to a boundary. :meth:`Distribution.accepts` says
exactly when.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hybridgen.request import SamplingParams
from hybridgen.sampling.rng import uniform

TOLERANCE = 2e-6
MIN_TEMPERATURE = np.float32(1e-5)

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Choice:
    """One row's answer; ``token_id`` is None when the logits are invalid."""

    token_id: int | None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a token is drawn from: a run of the most likely tokens.

    Attributes:
        order: ids with a finite logit, the most likely first, lower ids first among equals.
        weights: exp((z - top) / temperature) of each, in that order.
        num_kept: length of the run that top_k, top_p and min_p leave.
        min_kept: the shortest run that rounding within TOLERANCE could leave.
        max_kept: the longest.
    """

    order: Ids
    weights: Doubles
    num_kept: int
    min_kept: int
    max_kept: int

    def probabilities(self, vocab_size: int) -> Doubles:
        """Probability of every id, shape (vocab_size,)."""
        kept = self.weights[: self.num_kept]
        result = np.zeros(vocab_size)
        result[self.order[: self.num_kept]] = kept / kept.sum()
        return result

    def draw(self, u: float) -> int:
        """The lowest id at which the running sum, in order of ids, exceeds ``u`` of the total."""
        by_id = np.argsort(self.order[: self.num_kept])
        sums = np.cumsum(self.weights[by_id])
        index = int(np.searchsorted(sums, u * sums[-1], side="right"))
        return int(self.order[by_id[min(index, self.num_kept - 1)]])

    def accepts(self, token_id: int, u: float) -> bool:
        """Could the kernel, rounding within TOLERANCE, have drawn ``token_id``?"""
        found = np.flatnonzero(self.order[: self.max_kept] == token_id)
        if not found.size:
            return False
        by_id = np.argsort(self.order[: self.max_kept])
        sums = np.cumsum(self.weights[by_id])
        at = int(np.flatnonzero(by_id == found[0])[0])
        unsure = float(self.weights[self.min_kept : self.max_kept].sum()) / sums[-1]
        low = (sums[at - 1] if at else 0.0) / sums[-1]
        high = sums[at] / sums[-1]
        return bool(low - unsure - TOLERANCE <= u <= high + unsure + TOLERANCE)


def adjust(
    logits: Floats,
    params: SamplingParams,
    eos_ids: Sequence[int],
    history: Sequence[int],
    prompt_len: int,
) -> Floats:
    """Logits after bias, penalties and bans, float32, same shape; finite ones stay finite."""
    z = logits.astype(np.float32)
    vocab_size = len(z)
    for token_id, bias in params.logit_bias.items():
        if token_id < vocab_size:
            z[token_id] += np.float32(bias)
    ids = np.asarray(history, np.int64)
    seen = np.unique(ids[(ids >= 0) & (ids < vocab_size)])
    output = ids[prompt_len:]
    output = output[(output >= 0) & (output < vocab_size)]
    repetition = np.float32(params.repetition_penalty)
    counts = np.bincount(output, minlength=vocab_size).astype(np.float32)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        if repetition != 1:
            z[seen] = np.where(z[seen] > 0, z[seen] / repetition, z[seen] * repetition)
        z = z - np.float32(params.frequency_penalty) * counts
        z = z - np.float32(params.presence_penalty) * (counts > 0).astype(np.float32)
    is_finite = np.isfinite(logits)
    most = np.finfo(np.float32).max
    z[is_finite] = np.clip(z[is_finite], -most, most)
    z[~is_finite] = -np.inf
    if len(history) - prompt_len < params.min_tokens:
        banned = np.asarray([*eos_ids, *params.stop_token_ids], np.int64)
        z[banned[banned < vocab_size]] = -np.inf
    return z


def most_likely_first(z: Floats) -> Ids:
    """Ids with a finite logit, higher logits first, lower ids first among equals."""
    order = np.argsort(-z, kind="stable")
    return order[np.isfinite(z[order])].astype(np.int64)


def distribution(z: Floats, params: SamplingParams) -> Distribution:
    """Apply temperature, top_k, top_p and min_p, in this order, to adjusted logits."""
    order = most_likely_first(z)
    ordered = z[order].astype(np.float64)
    weights = np.exp((ordered - ordered[0]) / float(np.float32(params.temperature)))
    kept = len(order)
    if 0 < params.top_k < kept:
        kept = params.top_k
    low = high = kept
    if params.top_p < 1:
        sums = np.cumsum(weights[:kept])
        share = float(np.float32(params.top_p))
        low, kept, high = (
            min(int(np.searchsorted(sums, s * sums[-1])) + 1, kept)
            for s in (share - TOLERANCE, share, share + TOLERANCE)
        )
    if params.min_p > 0:
        least = float(np.float32(params.min_p))
        low, kept, high = (
            min(run, int(np.count_nonzero(weights >= least * factor)))
            for run, factor in ((low, 1 + TOLERANCE), (kept, 1.0), (high, 1 - TOLERANCE))
        )
    return Distribution(order, weights, max(kept, 1), max(low, 1), max(high, 1))


def log_softmax(logits: Floats) -> Doubles:
    """Log-probabilities of the logits as the model gave them, float64, same shape.

    Those below the range of float32 are given as its lowest number.
    """
    below = logits.astype(np.float64) - float(logits.max())
    total = float(np.exp(below).sum())
    logprobs = below - math.log(total)
    lowest = -float(np.finfo(np.float32).max)
    return np.where(np.isfinite(logits), np.maximum(logprobs, lowest), -np.inf)


def is_valid(logits: Floats) -> bool:
    """No NaN, no +inf, and at least one finite logit."""
    return (
        not np.isnan(logits).any()
        and not np.isposinf(logits).any()
        and bool(np.isfinite(logits).any())
    )


def sample(
    logits: Floats,
    params: SamplingParams,
    eos_ids: Sequence[int],
    history: Sequence[int],
    prompt_len: int,
) -> Choice:
    """Choose the token at position ``len(history)`` from one row of logits, shape (vocab_size,).

    ``params.seed`` must be set unless the temperature is 0.
    """
    if not is_valid(logits):
        return Choice(None)
    z = adjust(logits, params, eos_ids, history, prompt_len)
    if not np.isfinite(z).any():
        return Choice(None)
    if np.float32(params.temperature) < MIN_TEMPERATURE:
        token_id = int(np.argmax(z))
    else:
        token_id = distribution(z, params).draw(uniform(params.seed or 0, len(history)))
    if params.logprobs is None:
        return Choice(token_id)
    logprobs = log_softmax(logits)
    best = most_likely_first(logits)[: params.logprobs]
    top = tuple((int(i), float(logprobs[i])) for i in best)
    return Choice(token_id, float(logprobs[token_id]), top)
