"""Rows, parameters and histories to sample from, and one call for kernel and oracle alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hybridgen.request import SamplingParams
from hybridgen.sampling import _native, parameters, reference

VARIANTS = range(len(_native.variants()))

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Row:
    logits: Floats
    params: SamplingParams
    history: Sequence[int] = ()
    prompt_len: int = 0
    eos_ids: Sequence[int] = ()

    def packed(self) -> bytearray:
        record = bytearray(parameters.SAMPLING_BYTES)
        parameters.pack(self.params, self.eos_ids, self.params.seed or 0, memoryview(record))
        return record

    def kernel(self, variant: int = 0) -> tuple[int, int, float, list[tuple[int, float]]]:
        history = np.asarray(self.history, np.int32)
        return _native.sample_row(self.logits, self.packed(), history, self.prompt_len, variant)

    def token(self, variant: int = 0) -> int:
        return self.kernel(variant)[0]

    def oracle(self) -> reference.Choice:
        return reference.sample(
            self.logits, self.params, self.eos_ids, self.history, self.prompt_len
        )

    def probabilities(self) -> npt.NDArray[np.float64]:
        """Of every id, by the oracle."""
        z = reference.adjust(self.logits, self.params, self.eos_ids, self.history, self.prompt_len)
        weight = reference.kept_weights(z, self.params)
        return weight / weight.sum()


def random_logits(rng: np.random.Generator, vocab_size: int) -> Floats:
    """One of a dozen shapes a row can have, nasty ones among them."""
    kind = rng.integers(12)
    logits = rng.normal(0, rng.choice([0.01, 1, 3, 10]), vocab_size)
    if kind == 0:
        logits = np.full(vocab_size, rng.normal())
    elif kind == 1:
        logits = np.full(vocab_size, -np.inf)
        logits[rng.integers(vocab_size)] = rng.normal()
    elif kind == 2:
        logits = np.round(logits)
    elif kind == 3:
        logits[rng.random(vocab_size) < rng.random()] = -np.inf
    elif kind == 4:
        logits = logits * 10.0 ** rng.integers(-30, 37)
    elif kind == 5:
        logits[rng.integers(vocab_size, size=3)] = [3e38, -3e38, 3e38]
    elif kind == 6:
        logits = np.where(rng.random(vocab_size) < 0.5, 0.0, -0.0)
    elif kind == 7:
        logits = np.sort(logits)[:: rng.choice([-1, 1])].copy()
    elif kind == 8:
        logits[rng.integers(vocab_size, size=max(1, vocab_size // 50))] += 12
    return logits.astype(np.float32)


def random_params(rng: np.random.Generator, vocab_size: int) -> SamplingParams:
    """Each parameter off half of the time."""

    def pick(off: object, *choices: object) -> object:
        return off if rng.random() < 0.5 else choices[rng.integers(len(choices))]

    num_bias = int(rng.integers(0, min(vocab_size, 40))) if rng.random() < 0.4 else 0
    ids = rng.choice(vocab_size, num_bias, replace=False)
    return SamplingParams(
        temperature=pick(float(rng.uniform(0.05, 2)), 0.0, 1e-3, 0.7, 1.0, 100.0),
        top_k=pick(0, -1, 1, 2, 50, int(rng.integers(1, 2 * vocab_size)), vocab_size),
        top_p=pick(1.0, 0.9, 0.5, 1e-6, 0.999999, float(rng.uniform(0.01, 1))),
        min_p=pick(0.0, 0.05, 1.0, 1e-9, float(rng.uniform(0, 1))),
        repetition_penalty=pick(1.0, 1.1, 0.5, 100.0, float(rng.uniform(0.5, 2))),
        presence_penalty=pick(0.0, 2.0, -2.0, float(rng.uniform(-2, 2))),
        frequency_penalty=pick(0.0, 2.0, -2.0, float(rng.uniform(-2, 2))),
        logit_bias={int(i): float(rng.choice([-100.0, 100.0, rng.normal()])) for i in ids},
        seed=int(rng.integers(0, 2**63)),
        min_tokens=pick(0, 1, 20),
        stop_token_ids=pick((), tuple(int(i) for i in rng.integers(0, vocab_size, 3))),
        logprobs=pick(None, 0, 1, 5, 20),
    )


def random_row(rng: np.random.Generator, vocab_size: int) -> Row:
    length = int(rng.choice([0, 1, 10, 200]))
    return Row(
        logits=random_logits(rng, vocab_size),
        params=random_params(rng, vocab_size),
        history=rng.integers(0, vocab_size, length).tolist(),
        prompt_len=int(rng.integers(0, length + 1)),
        eos_ids=[int(rng.integers(vocab_size))],
    )
