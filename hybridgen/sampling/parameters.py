"""Sampling parameters as they stand in the slot record: ``struct hg_sampling`` of ipc/layout.h.

::

    byte   0  temperature top_p min_p repetition presence frequency      6 × float
          24  top_k min_tokens                                           2 × int32
          32  seed                                                       uint64
          40  num_logprobs ignore_eos num_eos num_stop num_bias num_stop_strings    6 × int32
          64  eos_ids[16] · 128 stop_ids[64]                             int32
         384  bias[512]                                                  int32 id, float value
        4480  stop_lengths[4] · include_stop · skip_special · reserved[2]           uint32
        4512  stop_bytes[1024]                                           back to back

The coscheduler alone writes a record. Numbers are rounded to float32 here, once, and that is what
every sampler computes with. ``max_tokens`` is not part of it: the slot's ``max_len`` is.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from hybridgen.errors import InternalError, InvalidRequest, UnsupportedModel
from hybridgen.request import MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS, SamplingParams

MAX_EOS_IDS = 16
SAMPLING_BYTES = 5536

_HEAD = struct.Struct("=6f2iQ6i")
_BIAS = struct.Struct("=if")
_FLAGS = struct.Struct("=6I")
_EOS_OFFSET = 64
_STOP_OFFSET = 128
_BIAS_OFFSET = 384
_FLAGS_OFFSET = 4480
_STRINGS_OFFSET = 4512


class Unpacked(NamedTuple):
    """What a record says."""

    params: SamplingParams
    eos_ids: tuple[int, ...]
    seed: int


def pack(params: SamplingParams, eos_ids: Sequence[int], seed: int, into: memoryview) -> None:
    """Write a record.

    Args:
        params: already validated; ``params.seed`` is ignored for ``seed``.
        eos_ids: the model's end-of-text ids, at most 16.
        seed: the seed in force, 0 … 2⁶⁴-1.
        into: the 5,536 writable bytes of the record.

    Raises:
        UnsupportedModel: the model has more end-of-text ids than the record holds.
        InvalidRequest: more stop ids, biases or stop strings than the record holds.
    """
    _check_size(into)
    stops = [text.encode("utf-8", "surrogatepass") for text in params.stop]
    _check_fit(params, eos_ids, stops)
    _HEAD.pack_into(
        into,
        0,
        *(params.temperature, params.top_p, params.min_p),
        *(params.repetition_penalty, params.presence_penalty, params.frequency_penalty),
        *(max(params.top_k, 0), params.min_tokens, seed),
        *(-1 if params.logprobs is None else params.logprobs, int(params.ignore_eos)),
        *(len(eos_ids), len(params.stop_token_ids), len(params.logit_bias), len(stops)),
    )
    struct.pack_into(f"={len(eos_ids)}i", into, _EOS_OFFSET, *eos_ids)
    stop_ids = params.stop_token_ids
    struct.pack_into(f"={len(stop_ids)}i", into, _STOP_OFFSET, *stop_ids)
    for index, (token_id, bias) in enumerate(params.logit_bias.items()):
        _BIAS.pack_into(into, _BIAS_OFFSET + index * _BIAS.size, token_id, bias)
    lengths = [len(stop) for stop in stops] + [0] * (4 - len(stops))
    is_kept = (int(params.include_stop_str_in_output), int(params.skip_special_tokens))
    _FLAGS.pack_into(into, _FLAGS_OFFSET, *lengths, *is_kept)
    joined = b"".join(stops)
    into[_STRINGS_OFFSET : _STRINGS_OFFSET + len(joined)] = joined


def unpack(view: memoryview) -> Unpacked:
    """Read a record back; the numbers are float32, ``max_tokens`` is None.

    Raises:
        InternalError: the record's counts are out of bounds.
    """
    _check_size(view)
    fields = _HEAD.unpack_from(view, 0)
    temperature, top_p, min_p, repetition, presence, frequency = fields[:6]
    top_k, min_tokens, seed, num_logprobs, ignore_eos = fields[6:11]
    num_eos, num_stop, num_bias, num_strings = fields[11:]
    _check_count("end-of-text ids", num_eos, MAX_EOS_IDS)
    _check_count("stop ids", num_stop, MAX_STOP_TOKEN_IDS)
    _check_count("biases", num_bias, MAX_LOGIT_BIAS)
    *lengths, include_stop, skip_special = _FLAGS.unpack_from(view, _FLAGS_OFFSET)
    _check_count("stop strings", num_strings, len(lengths))
    _check_count("stop bytes", sum(lengths), SAMPLING_BYTES - _STRINGS_OFFSET)
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=dict(_BIAS.iter_unpack(_bias_bytes(view, num_bias))),
        seed=seed,
        min_tokens=min_tokens,
        stop=_read_strings(view, lengths[:num_strings]),
        stop_token_ids=struct.unpack_from(f"={num_stop}i", view, _STOP_OFFSET),
        ignore_eos=bool(ignore_eos),
        include_stop_str_in_output=bool(include_stop),
        skip_special_tokens=bool(skip_special),
        logprobs=None if num_logprobs < 0 else num_logprobs,
    )
    return Unpacked(params, struct.unpack_from(f"={num_eos}i", view, _EOS_OFFSET), seed)


def _bias_bytes(view: memoryview, num_bias: int) -> memoryview:
    return view[_BIAS_OFFSET : _BIAS_OFFSET + num_bias * _BIAS.size]


def _read_strings(view: memoryview, lengths: Sequence[int]) -> tuple[str, ...]:
    strings = []
    start = _STRINGS_OFFSET
    for length in lengths:
        strings.append(bytes(view[start : start + length]).decode("utf-8", "surrogatepass"))
        start += length
    return tuple(strings)


def _check_size(view: memoryview) -> None:
    if view.nbytes != SAMPLING_BYTES:
        raise InternalError("not a sampling record", value=view.nbytes, limit=SAMPLING_BYTES)


def _check_count(name: str, count: int, limit: int) -> None:
    if not 0 <= count <= limit:
        raise InternalError(f"a sampling record claims too many {name}", value=count, limit=limit)


def _check_fit(params: SamplingParams, eos_ids: Sequence[int], stops: Sequence[bytes]) -> None:
    if len(eos_ids) > MAX_EOS_IDS:
        raise UnsupportedModel(
            "the model has too many end-of-text ids", value=len(eos_ids), limit=MAX_EOS_IDS
        )
    for name, count, limit in (
        ("stop_token_ids", len(params.stop_token_ids), MAX_STOP_TOKEN_IDS),
        ("logit_bias", len(params.logit_bias), MAX_LOGIT_BIAS),
        ("stop", len(stops), 4),
        ("stop (bytes in all)", sum(map(len, stops)), SAMPLING_BYTES - _STRINGS_OFFSET),
    ):
        if count > limit:
            raise InvalidRequest(f"{name} has too many entries", value=count, limit=limit)
