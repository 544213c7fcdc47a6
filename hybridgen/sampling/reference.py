"""The sampler as plain numpy: what the native kernel must agree with, token for token.

It sorts whole rows, to be read and trusted, not to be fast. The definitions are those of row.h, and
of lanes.h for weights. Adjusted logits and weights are float32 as in the kernel, because which one
is larger must not depend on who computes it; sums of weights are float64 and exact, because every
weight is a multiple of 2⁻³⁴.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hybridgen.request import SamplingParams
from hybridgen.sampling.rng import uniform

LOG2_E = 1.4426950408889634
#: 2^f on [-1/2, 1/2], the highest power first: HG_POLY5 … HG_POLY1 of lanes.h, and 1.
POLYNOMIAL = tuple(
    np.float32(float.fromhex(text))
    for text in (
        "0x1.5bba14p-10",
        "0x1.3cea88p-7",
        "0x1.c6b752p-5",
        "0x1.ebf9bcp-3",
        "0x1.62e42ap-1",
        "0x1p0",
    )
)
WEIGHT_FLOOR = np.float32(-127)
WEIGHT_GRID = 2.0**-34
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


def weights(z: Floats, temperature: float) -> Doubles:
    """exp((z - top) / temperature) as lanes.h defines it: multiples of 2⁻³⁴, same shape."""
    scale = np.float32(LOG2_E / float(np.float32(temperature)))
    with np.errstate(over="ignore"):
        y = np.maximum((z - z.max()) * scale, WEIGHT_FLOOR)
    exponent = np.rint(y)
    fraction = y - exponent
    power = np.zeros_like(y)
    for coefficient in POLYNOMIAL:
        power = power * fraction + coefficient
    exact = np.ldexp(power.astype(np.float64), exponent.astype(np.int64))
    rounded: Doubles = np.rint(exact / WEIGHT_GRID) * WEIGHT_GRID
    return rounded


def kept_weights(z: Floats, params: SamplingParams) -> Doubles:
    """Weights of adjusted logits, 0 for what top_k, top_p or min_p drops; same shape."""
    weight = weights(z, params.temperature)
    kept = most_likely_first(z)
    if params.top_k > 0:
        kept = kept[: params.top_k]
    if params.top_p < 1:
        sums = np.cumsum(weight[kept])
        limit = float(np.float32(params.top_p)) * sums[-1]
        kept = kept[: int(np.searchsorted(sums, limit)) + 1]
    kept = kept[weight[kept] >= float(np.float32(params.min_p))]
    result = np.zeros(len(z))
    result[kept] = weight[kept]
    return result


def draw(weight: Doubles, u: float) -> int:
    """The lowest id at which the running sum of weights exceeds ``u`` of the total."""
    sums = np.cumsum(weight)
    return int(np.searchsorted(sums, u * sums[-1], side="right"))


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
        token_id = draw(kept_weights(z, params), uniform(params.seed or 0, len(history)))
    if params.logprobs is None:
        return Choice(token_id)
    logprobs = log_softmax(logits)
    best = most_likely_first(logits)[: params.logprobs]
    top = tuple((int(i), float(logprobs[i])) for i in best)
    return Choice(token_id, float(logprobs[token_id]), top)
