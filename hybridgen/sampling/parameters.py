"""Sampling parameters as they stand in the slot record: ``struct hg_sampling`` of ipc/layout.h.

::

    byte   0  temperature top_p min_p repetition presence frequency      6 × float
          24  top_k min_tokens                                           2 × int32
          32  seed                                                       uint64
          40  num_logprobs ignore_eos num_eos num_stop num_bias num_stop_strings    6 × int32
          64  eos_ids[16] · 128 stop_ids[64]                             int32
         384  bias[512]                                                  int32 id, float value
        4480  stop_lengths[4] · include_stop · skip_special · grammar_kind, _bytes  uint32
        4512  stop_bytes[1024]                                           back to back
        5536  stop_regex_bytes · a hole                                  2 × uint32
        5544  stop_regex[256]

``skip_special`` has a second bit: special tokens that mark calls of tools are kept all the same.
A grammar's text stands in an area of its own, since it may be long.

The coscheduler alone writes a record. Numbers are rounded to float32 here, once, and that is what
every sampler computes with. ``max_tokens`` is not part of it: the slot's ``max_len`` is.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from hybridgen.errors import InternalError, InvalidRequest, UnsupportedModel
from hybridgen.request import (
    MAX_GRAMMAR_BYTES,
    MAX_LOGIT_BIAS,
    MAX_STOP_REGEX_BYTES,
    MAX_STOP_TOKEN_IDS,
    Grammar,
    GrammarKind,
    SamplingParams,
)

MAX_EOS_IDS = 16
SAMPLING_BYTES = 5800

_HEAD = struct.Struct("=6f2iQ6i")
_BIAS = struct.Struct("=if")
_FLAGS = struct.Struct("=8I")
_REGEX = struct.Struct("=I4x")
_EOS_OFFSET = 64
_STOP_OFFSET = 128
_BIAS_OFFSET = 384
_FLAGS_OFFSET = 4480
_STRINGS_OFFSET = 4512
_STRINGS_BYTES = 1024
_REGEX_OFFSET = 5536
_PATTERN_OFFSET = _REGEX_OFFSET + _REGEX.size
#: A record holds the place in here + 1; 0 is no grammar.
GRAMMAR_KINDS: tuple[GrammarKind, ...] = ("json_object", "json_schema", "regex", "lark")
_NO_AREA = memoryview(bytearray())


class Unpacked(NamedTuple):
    """What a record says."""

    params: SamplingParams
    eos_ids: tuple[int, ...]
    seed: int


def pack(
    params: SamplingParams,
    eos_ids: Sequence[int],
    seed: int,
    into: memoryview,
    grammar_into: memoryview = _NO_AREA,
) -> None:
    """Write a record.

    Args:
        params: already validated; ``params.seed`` is ignored for ``seed``.
        eos_ids: the model's end-of-text ids, at most 16.
        seed: the seed in force, 0 … 2⁶⁴-1.
        into: the 5,800 writable bytes of the record.
        grammar_into: the writable bytes for the text of ``params.grammar``.

    Raises:
        UnsupportedModel: the model has more end-of-text ids than the record holds.
        InvalidRequest: more stop ids, biases, stop strings, stop_regex or grammar than there is
            room for.
    """
    _check_size(into)
    stops = [text.encode("utf-8", "surrogatepass") for text in params.stop]
    kind, grammar = _encode_grammar(params.grammar)
    _check_fit(params, eos_ids, stops)
    _check_most("grammar (bytes)", len(grammar), len(grammar_into))
    _HEAD.pack_into(
        into,
        0,
        *(params.temperature, params.top_p, params.min_p),
        *(params.repetition_penalty, params.presence_penalty, params.frequency_penalty),
        *(max(params.top_k, 0), params.min_tokens, seed),
        *(-1 if params.logprobs is None else params.logprobs, int(params.ignore_eos)),
        *(len(eos_ids), len(params.stop_token_ids), len(params.logit_bias), len(stops)),
    )
    _write_ids(eos_ids, into, _EOS_OFFSET)
    _write_ids(params.stop_token_ids, into, _STOP_OFFSET)
    for index, (token_id, bias) in enumerate(params.logit_bias.items()):
        _BIAS.pack_into(into, _BIAS_OFFSET + index * _BIAS.size, token_id, bias)
    lengths = [len(stop) for stop in stops] + [0] * (4 - len(stops))
    skip_special = (
        int(params.skip_special_tokens)
        | int(params.keep_tool_marks) << 1
        | int(params.keep_reasoning_marks) << 2
    )
    is_kept = (int(params.include_stop_str_in_output), skip_special)
    _FLAGS.pack_into(into, _FLAGS_OFFSET, *lengths, *is_kept, kind, len(grammar))
    joined = b"".join(stops)
    into[_STRINGS_OFFSET : _STRINGS_OFFSET + len(joined)] = joined
    _write_regex(params.stop_regex, into)
    if grammar:
        grammar_into[: len(grammar)] = grammar


def unpack(view: memoryview, grammar_view: memoryview = _NO_AREA) -> Unpacked:
    """Read a record back; the numbers are float32, ``max_tokens`` is None.

    A grammar comes without its text when ``grammar_view``, the area of the text, is not given.

    Raises:
        InternalError: the record's counts are out of bounds, or its texts are none.
    """
    _check_size(view)
    fields = _HEAD.unpack_from(view, 0)
    temperature, top_p, min_p, repetition, presence, frequency = fields[:6]
    top_k, min_tokens, seed, num_logprobs, ignore_eos = fields[6:11]
    num_eos, num_stop, num_bias, num_strings = fields[11:]
    _check_count("end-of-text ids", num_eos, MAX_EOS_IDS)
    _check_count("stop ids", num_stop, MAX_STOP_TOKEN_IDS)
    _check_count("biases", num_bias, MAX_LOGIT_BIAS)
    flags = _FLAGS.unpack_from(view, _FLAGS_OFFSET)
    *lengths, include_stop, skip_special, kind, num_grammar_bytes = flags
    _check_count("stop strings", num_strings, len(lengths))
    _check_count("stop bytes", sum(lengths), _STRINGS_BYTES)
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=dict(_BIAS.iter_unpack(_bias_bytes(view, num_bias))) if num_bias else {},
        seed=seed,
        min_tokens=min_tokens,
        stop=_read_strings(view, lengths[:num_strings]) if num_strings else (),
        stop_regex=_read_regex(view),
        stop_token_ids=_read_ids(view, _STOP_OFFSET, num_stop),
        ignore_eos=bool(ignore_eos),
        include_stop_str_in_output=bool(include_stop),
        skip_special_tokens=bool(skip_special & 1),
        keep_tool_marks=bool(skip_special & 2),
        keep_reasoning_marks=bool(skip_special & 4),
        logprobs=None if num_logprobs < 0 else num_logprobs,
        grammar=_read_grammar(kind, num_grammar_bytes, grammar_view),
    )
    return Unpacked(params, _read_ids(view, _EOS_OFFSET, num_eos), seed)


def _write_ids(ids: Sequence[int], into: memoryview, offset: int) -> None:
    if ids:
        struct.pack_into(f"={len(ids)}i", into, offset, *ids)


def _read_ids(view: memoryview, offset: int, num_ids: int) -> tuple[int, ...]:
    return struct.unpack_from(f"={num_ids}i", view, offset) if num_ids else ()


def _encode_grammar(grammar: Grammar | None) -> tuple[int, bytes]:
    if grammar is None:
        return 0, b""
    return GRAMMAR_KINDS.index(grammar.kind) + 1, grammar.text.encode()


def _read_grammar(kind: int, num_bytes: int, view: memoryview) -> Grammar | None:
    _check_count("kinds of grammar", kind, len(GRAMMAR_KINDS))
    _check_count("grammar bytes", num_bytes, MAX_GRAMMAR_BYTES)
    if kind == 0:
        return None
    return Grammar(GRAMMAR_KINDS[kind - 1], _decode(view[:num_bytes]))


def _write_regex(pattern: str | None, into: memoryview) -> None:
    encoded = (pattern or "").encode()
    _check_most("stop_regex (bytes)", len(encoded), MAX_STOP_REGEX_BYTES)
    _REGEX.pack_into(into, _REGEX_OFFSET, len(encoded))
    if encoded:
        into[_PATTERN_OFFSET : _PATTERN_OFFSET + len(encoded)] = encoded


def _read_regex(view: memoryview) -> str | None:
    (num_bytes,) = _REGEX.unpack_from(view, _REGEX_OFFSET)
    if num_bytes == 0:
        return None
    _check_count("bytes of stop_regex", num_bytes, MAX_STOP_REGEX_BYTES)
    return bytes(view[_PATTERN_OFFSET : _PATTERN_OFFSET + num_bytes]).decode()


def _bias_bytes(view: memoryview, num_bias: int) -> memoryview:
    return view[_BIAS_OFFSET : _BIAS_OFFSET + num_bias * _BIAS.size]


def _read_strings(view: memoryview, lengths: Sequence[int]) -> tuple[str, ...]:
    strings = []
    start = _STRINGS_OFFSET
    for length in lengths:
        strings.append(_decode(view[start : start + length], "surrogatepass"))
        start += length
    return tuple(strings)


def _decode(view: memoryview, errors: str = "strict") -> str:
    try:
        return bytes(view).decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise InternalError(f"a sampling record holds no text: {error.reason}") from None


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
        ("stop (bytes in all)", sum(map(len, stops)), _STRINGS_BYTES),
    ):
        _check_most(name, count, limit)


def _check_most(name: str, count: int, limit: int) -> None:
    if count > limit:
        raise InvalidRequest(f"{name} has too many entries", value=count, limit=limit)
