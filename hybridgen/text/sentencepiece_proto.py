"""SentencePiece's ``.model`` file: the few fields of its protobuf that a vocabulary needs.

Reading it here, rather than through the library, lets a detokenizer start without the library;
writing it lets a GGUF vocabulary be handed to the library. Field numbers are those of
sentencepiece_model.proto: ModelProto {pieces 1, trainer_spec 2, normalizer_spec 3},
SentencePiece {piece 1, score 2, type 3}.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterator
from typing import NamedTuple

from hybridgen.errors import BadModelFile

MAX_PIECES = 4_000_000

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_NORMAL = 1
_CONTROL = 3
_BYTE = 6
_MODEL_TYPE_BPE = 2


class SentencePieceModel(NamedTuple):
    """A vocabulary of pieces, with the normalizer's two rules about spaces."""

    pieces: list[str]
    scores: list[float]
    types: list[int]
    has_dummy_prefix: bool
    removes_extra_spaces: bool


def parse_model(data: bytes) -> SentencePieceModel:
    """Read a serialized ModelProto.

    Raises:
        BadModelFile: for truncated or malformed data, or data without pieces.
    """
    pieces: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    normalizer = b""
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            piece, score, kind = _parse_piece(value)
            pieces.append(piece)
            scores.append(score)
            types.append(kind)
        elif number == 3 and isinstance(value, bytes):
            normalizer = value
    if not pieces or len(pieces) > MAX_PIECES:
        raise BadModelFile(
            "a SentencePiece model has an impossible number of pieces",
            field="tokenizer.model (pieces)",
            value=len(pieces),
            limit=f"1 … {MAX_PIECES}",
            remedy="Download the tokenizer.model again",
        )
    rules = {number: value for number, value in _fields(normalizer) if isinstance(value, int)}
    return SentencePieceModel(pieces, scores, types, bool(rules.get(3, 1)), bool(rules.get(4, 1)))


def _parse_piece(data: bytes) -> tuple[str, float, int]:
    piece, score, kind = "", 0.0, _NORMAL
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            try:
                piece = value.decode()
            except UnicodeDecodeError:
                raise _malformed("a piece is not UTF-8") from None
        elif number == 2 and isinstance(value, bytes):
            score = _score(value)
        elif number == 3 and isinstance(value, int):
            kind = value
    return piece, score, kind


def _score(value: bytes) -> float:
    if len(value) != _FIXED_BYTES[_FIXED32]:
        raise _malformed("a score is no float")
    score: float = struct.unpack("<f", value)[0]
    if not math.isfinite(score):
        raise _malformed("a score is no number")
    return score


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of each field; fixed-width values come as raw bytes."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire == _BYTES:
            size, position = _varint(data, position)
        elif wire in _FIXED_BYTES:
            size = _FIXED_BYTES[wire]
        else:
            raise _malformed(f"unknown wire type {wire}")
        if size > len(data) - position:
            raise _malformed("a field is longer than the data")
        yield number, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise _malformed("a number is cut off")


def _malformed(why: str) -> BadModelFile:
    return BadModelFile(
        f"a SentencePiece model is damaged: {why}",
        field="tokenizer.model",
        remedy="Download the tokenizer.model again",
    )


def with_controls(data: bytes, ids: Collection[int]) -> bytes:
    """The same ModelProto, with the pieces ``ids`` as control pieces: text never becomes them.

    Raises:
        BadModelFile: for truncated or malformed data.
    """
    parts: list[bytes] = []
    num_pieces = 0
    for number, value in _fields(data):
        if isinstance(value, int):
            parts.append(_int_field(number, value))
            continue
        is_piece = number == 1
        if is_piece and num_pieces in ids:
            piece, score, _ = _parse_piece(value)
            parts.append(_bytes_field(number, _piece(piece, score, _CONTROL)))
        else:
            parts.append(_bytes_field(number, value))
        num_pieces += is_piece
    return b"".join(parts)


def serialize_bpe_model(model: SentencePieceModel, unk_id: int) -> bytes:
    """A ModelProto that merges by score, as llama-type vocabularies mean it.

    Text is not normalized; bytes stand in for unknown characters when there are byte pieces.
    """
    pieces = b"".join(
        _bytes_field(1, _piece(*entry))
        for entry in zip(model.pieces, model.scores, model.types, strict=True)
    )
    trainer = (
        _int_field(3, _MODEL_TYPE_BPE)
        + _int_field(4, len(model.pieces))
        + _int_field(35, int(_BYTE in model.types))
        + _int_field(40, unk_id)
        # bos, eos and pad are found by their pieces' types; -1 (as uint64) means "by none".
        + b"".join(_int_field(number, 2**64 - 1) for number in (41, 42, 43))
    )
    normalizer = (
        _bytes_field(1, b"identity")
        + _int_field(3, int(model.has_dummy_prefix))
        + _int_field(4, int(model.removes_extra_spaces))
        + _int_field(5, 1)
    )
    return pieces + _bytes_field(2, trainer) + _bytes_field(3, normalizer)


def _piece(piece: str, score: float, kind: int) -> bytes:
    text = piece.encode("utf-8", "surrogatepass")
    return _bytes_field(1, text) + b"\x15" + struct.pack("<f", score) + _int_field(3, kind)


def _int_field(number: int, value: int) -> bytes:
    return _encode_varint(number << 3 | _VARINT) + _encode_varint(value)


def _bytes_field(number: int, value: bytes) -> bytes:
    return _encode_varint(number << 3 | _BYTES) + _encode_varint(len(value)) + value


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
