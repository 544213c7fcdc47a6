"""How a device is to sample a row: what it needs of the request's parameters, in eight words.

::

    word  0  scale       bits of the float32 log2(e) / temperature; 0: greedy
          1  top_k       0: all
          2  top_p       bits of the float32
          3  min_p       bits of the float32
          4  seed        low 32 bits
          5  …           high 32 bits
          6  base        base + step = absolute position of the token to choose
          7  flags       RowWork

A device picks the likeliest tokens out of a row of logits as they come from the model (the row's
cut, ipc/layout.h) and may choose the token itself. So it does neither where the request changes
logits, has a grammar or asks for log-probabilities: samplers do, from the whole row. The numbers
are the ones that the samplers compute with, bit for bit.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridgen.ipc.logit_ring import RowHas
from hybridgen.request import SamplingParams
from hybridgen.sampling import parameters

PARAMETER_WORDS = 8
BASE_WORD = 6
FLAGS_WORD = 7
#: Bits of ``hg_row.flags``.
HAS_CUT = int(RowHas.CUT)
HAS_TOKEN = int(RowHas.TOKEN)

_WORDS = struct.Struct("=fiffQiI")
_LOG2_E = 1.4426950408889634
_MIN_TEMPERATURE = float(np.float32(1e-5))


class RowWork(enum.IntFlag):
    """What a device may do with a row's logits."""

    CUT = 1
    CHOOSE = 2


class RowParameters(NamedTuple):
    """One row's words, and when they count."""

    words: NDArray[np.int32]  # (8,); word BASE_WORD is 0
    plain_from: int
    """Position from which on a token follows from the logits as they are; NEVER."""


NEVER = 2**62
#: Of a row that a device does nothing with.
NO_PARAMETERS = RowParameters(np.zeros(PARAMETER_WORDS, np.int32), NEVER)
NO_PARAMETERS.words.flags.writeable = False


def read_parameters(sampling: memoryview, prompt_len: int) -> RowParameters:
    """The words of a request.

    Args:
        sampling: its ``struct hg_sampling``.
        prompt_len: tokens of its prompt.

    Raises:
        InternalError: the record's counts are out of bounds.
    """
    params, _, seed = parameters.unpack(sampling)
    is_plain = _is_plain(params)
    work = RowWork.CUT | RowWork.CHOOSE if is_plain else RowWork(0)
    scale = _scale_of(params.temperature)
    packed = _WORDS.pack(scale, params.top_k, params.top_p, params.min_p, seed, 0, work)
    # Until then ids are banned that would end the text.
    plain_from = prompt_len + params.min_tokens if is_plain else NEVER
    return RowParameters(np.frombuffer(packed, np.int32), plain_from)


def _scale_of(temperature: float) -> float:
    """In double, rounded to float32 once as the words are packed: what native code does."""
    return _LOG2_E / temperature if temperature >= _MIN_TEMPERATURE else 0.0


def _is_plain(params: SamplingParams) -> bool:
    """Whether tokens follow from the logits as they are, sooner or later, and no more is asked."""
    return (
        params.logprobs is None
        and params.grammar is None
        and not params.logit_bias
        and params.repetition_penalty == 1.0
        and params.presence_penalty == 0.0
        and params.frequency_penalty == 0.0
    )
