"""A conversion as the command line runs it: inspected, converted, reported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import msgspec

from hybridgen.clock import monotonic_s
from hybridgen.config import Config
from hybridgen.errors import ConfigError
from hybridgen.formats.atomic_file import OUTPUT, check_place
from hybridgen.formats.hybridgen_file import DtypeName, read_hybridgen, stored_tensors
from hybridgen.formats.inspect import inspect_model
from hybridgen.formats.model_info import ModelInfo
from hybridgen.formats.serve_hints import ServeHints
from hybridgen.launch.convert_progress import ConvertProgress
from hybridgen.launch.preflight import format_bytes
from hybridgen.text.tokenizer import build_tokenizer


class ConvertOrder(NamedTuple):
    """What is to be made of what."""

    source: str
    output: Path
    dtype: str
    is_int8: bool
    hints: ServeHints
    is_replacing: bool


def convert(order: ConvertOrder, *, is_json: bool) -> None:
    """Make the file, and tell on standard error how far it is; on standard output what was made.

    Raises:
        ConfigError: there is no such source, or the output cannot be made.
        ModelError: the source cannot be used.
    """
    info = inspect_model(order.source, Config())
    if info.kind == "mock":
        raise ConfigError(
            "the mock model has no weights", value=order.source, remedy="Name a model"
        )
    longest, asked = info.config.max_position, order.hints.max_model_len
    if asked is not None and asked > longest:
        raise ConfigError(
            "the hint max_model_len is more than the model's context",
            value=asked,
            limit=longest,
            remedy="Give --max-model-len at most the limit, or leave it out",
        )
    given = msgspec.structs.asdict(info.hints) | order.hints.given
    info = msgspec.structs.replace(info, hints=msgspec.convert(given, ServeHints))
    dtype = _dtype(order, info)
    tensors = stored_tensors(info.config, dtype, is_int8=order.is_int8)
    num_bytes = sum(tensor.num_bytes for tensor in tensors.values())
    check_place(order.output, num_bytes, OUTPUT, is_replacing=order.is_replacing)
    build_tokenizer(info.tokenizer)  # refuses one that could never be served
    # torch takes over a second to import: what can be refused without it has been.
    from hybridgen.formats.convert import convert_model  # noqa: PLC0415

    with ConvertProgress(sys.stderr, info.weight_bytes, monotonic_s) as progress:
        convert_model(
            info,
            dtype,
            order.output,
            progress,
            is_int8=order.is_int8,
            is_replacing=order.is_replacing,
        )
        elapsed_s = progress.elapsed_s
    made = read_hybridgen(order.output).info
    num_bytes = order.output.stat().st_size
    if not is_json:
        types = ", ".join(f"{count} {name}" for name, count in made.weight_types.items())
        print(f"{order.output}: {format_bytes(num_bytes)}, {types} tensors, {elapsed_s:.1f} s")
        return
    facts = {
        "path": str(order.output),
        "bytes": num_bytes,
        "parameters": made.config.num_parameters,
        "weight_types": made.weight_types,
        "hints": made.hints.given,
        "source_bytes": info.weight_bytes,
        "elapsed_s": round(elapsed_s, 3),
        "gb_per_s": round(info.weight_bytes / 1e9 / max(elapsed_s, 1e-9), 3),
    }
    print(msgspec.json.format(msgspec.json.encode(facts)).decode())


def _dtype(order: ConvertOrder, info: ModelInfo) -> DtypeName:
    if order.dtype == "auto":
        is_ours = info.kind == "hybridgen"
        return read_hybridgen(Path(info.path)).dtype if is_ours else "bfloat16"
    chosen: DtypeName = msgspec.convert(order.dtype, DtypeName)
    return chosen
