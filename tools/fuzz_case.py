"""One damaged model: how it is made from a seed, and whether it is read or refused as it should be.

It is read as a start of the server would: what it says of itself, its tokenizer and a prompt, the
conversion, and the first steps of the CPU engine on the converted file.
"""

from __future__ import annotations

import random
import resource
import struct
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from hybridgen.config import Config, DeviceSection, ModelSection, SchedulerSection
from hybridgen.errors import (
    MAX_SHOWN_CHARS,
    BadModelFile,
    HybridGenError,
    InvalidRequest,
    ModelError,
    OutOfHostMemory,
    RequestError,
)
from hybridgen.formats.convert import convert_model
from hybridgen.formats.inspect import inspect_model
from hybridgen.formats.model_info import ModelInfo
from hybridgen.models.registry import load_engine
from hybridgen.request import ChatPrompt, TextPrompt
from hybridgen.text.prompt_encoder import build_prompt_encoder
from tools.fuzz_specimens import Specimen
from tools.mutate_bytes import HOSTILE_TEMPLATES, mutate_bytes
from tools.mutate_gguf import mutate_gguf
from tools.mutate_json import mutate_json
from tools.mutate_protobuf import mutate_protobuf
from tools.mutate_safetensors import mutate_safetensors

#: CPU time for each of the things that are done with a model; the templates of a tokenizer have as
#: much for themselves, to be compiled and to be rendered.
LIMIT_S = 1.0
MAX_RSS_BYTES = 2 << 30
MAX_DAMAGES = 3
_CONTEXT = 32
_TOO_DAMAGED = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
    struct.error,
)
_Result = TypeVar("_Result")
_BYTE_SHARE = 0.2


class Case(NamedTuple):
    """A model as damaged files, and how they became so."""

    specimen: Specimen
    files: dict[str, bytes]
    damages: list[str]


class Failure(Exception):
    """A damaged model was neither read nor refused as it should be."""


def make_case(seed: int, specimens: Sequence[Specimen], only: frozenset[int] | None = None) -> Case:
    """The case of ``seed``; ``only``: indices of the damages to do, for a smaller one."""
    dice = random.Random(seed)
    specimen = dice.choice(specimens)
    files, damages = dict(specimen.files), []
    for index in range(dice.choice((1, 1, 1, 2, MAX_DAMAGES))):
        own = random.Random(f"{seed}/{index}")
        # Every file as often as the others, but weights, whose header is the same everywhere.
        name = own.choice(sorted(files, key=lambda file: (file.endswith(".safetensors"), file)))
        if only is None or index in only:
            what, files[name] = _damaged(name, files[name], own)
            damages.append(f"{name}: {what}")
    return Case(specimen, files, damages)


def _damaged(name: str, content: bytes, dice: random.Random) -> tuple[str, bytes]:
    mutate = _BY_SUFFIX[name[name.rindex(".") :]]
    if dice.random() >= _BYTE_SHARE:
        try:
            return mutate(content, dice)
        except _TOO_DAMAGED:
            pass  # by a damage before
    return mutate_bytes(content, dice)


def _mutate_text(content: bytes, dice: random.Random) -> tuple[str, bytes]:
    what, text = mutate_json(content.decode(), dice)
    return what, text.encode("utf-8", "surrogatepass")


def _mutate_template(content: bytes, dice: random.Random) -> tuple[str, bytes]:
    cut = dice.randrange(len(content) + 1)
    hostile = dice.choice((*HOSTILE_TEMPLATES, "x" * 2**21)).encode()
    return "replaced or cut", dice.choice((hostile, content[:cut], content + hostile))


_BY_SUFFIX: dict[str, Callable[[bytes, random.Random], tuple[str, bytes]]] = {
    ".gguf": mutate_gguf,
    ".json": _mutate_text,
    ".safetensors": mutate_safetensors,
    ".hybridgen": mutate_safetensors,
    ".model": mutate_protobuf,
    ".jinja": _mutate_template,
}


def exercise(path: Path, output: Path) -> str:
    """Do everything with the model at ``path``; the outcome: "read", or the class of the refusal.

    Args:
        path: a file or a folder.
        output: where it is converted to; not there before and afterwards.

    Raises:
        Failure: an untyped error, a refusal that names nothing, or too much time.
    """
    # The peak of memory begins anew.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    try:
        info = _stage("inspect", (ModelError,), lambda: inspect_model(str(path), Config()))
        _stage("tokenizer", (ModelError, RequestError), lambda: _encode(info), share=3)
        _stage("convert", (ModelError,), lambda: convert_model(info, "bfloat16", output))
        _stage("load", (ModelError, OutOfHostMemory), lambda: _compute(output))
    except _Refused as refused:
        return refused.outcome
    finally:
        output.unlink(missing_ok=True)
    return "read"


class _Refused(Exception):
    def __init__(self, outcome: str) -> None:
        super().__init__(outcome)
        self.outcome = outcome


def _stage(
    name: str,
    accepted: tuple[type[HybridGenError], ...],
    work: Callable[[], _Result],
    share: int = 1,
) -> _Result:
    started_s = time.process_time()
    try:
        result = work()
    except accepted as refusal:
        _check_cost(name, started_s, share)
        _check_refusal(name, refusal)
        raise _Refused(f"{name}: {type(refusal).__name__}") from refusal
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever it is, panics of native code included
        raise Failure(f"{name}: {traceback.format_exc(limit=-6)}") from error
    _check_cost(name, started_s, share)
    return result


def _check_cost(stage: str, started_s: float, share: int) -> None:
    took_s = time.process_time() - started_s
    if took_s > LIMIT_S * share:
        raise Failure(f"{stage} took {took_s:.2f} s of CPU time")
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > MAX_RSS_BYTES:
        raise Failure(f"{stage} took more than {MAX_RSS_BYTES} bytes of memory")


def _check_refusal(stage: str, refusal: HybridGenError) -> None:
    """A refusal must be short, and say what is wrong where and what to do."""
    text = str(refusal)
    if len(text) > 4 * MAX_SHOWN_CHARS or not refusal.fields.get("remedy"):
        raise Failure(f"{stage}: not a clear refusal: {text[:500]}")
    named = ("field", "tensor", "param")
    if isinstance(refusal, BadModelFile) and not any(refusal.fields.get(key) for key in named):
        raise Failure(f"{stage}: a refusal that names no field: {text[:500]}")


def _encode(info: ModelInfo) -> None:
    encoder = build_prompt_encoder(info.tokenizer, max_model_len=4096)
    try:
        encoder.encode(TextPrompt("Hello, wörld 123"))
        encoder.encode(ChatPrompt.of([{"role": "user", "content": "Hello <s>"}]))
    except InvalidRequest as error:
        if error.fields.get("param") == "messages":
            return  # the template refuses conversations, or there is none: texts are served
        raise


def _compute(path: Path) -> None:
    """A prompt and a step on a CPU engine."""
    info = inspect_model(str(path), Config())
    context = min(_CONTEXT, info.config.max_position)
    config = Config(
        model=ModelSection(model=str(path), max_model_len=context),
        device=DeviceSection(num_kv_blocks=2, num_compute_threads=1),
        scheduler=SchedulerSection(max_num_seqs=1, prefill_chunk=16),
    )
    engine = load_engine(info, config, lambda _share, _what: None)
    try:
        logits = np.zeros((1, info.config.vocab_size), np.float32)
        ids, table = np.array([0, 1], np.int32)[: context - 1], np.array([[0, 1]], np.int32)
        if len(ids):
            engine.prefill(ids, 0, table[0], logits[0])
        position = np.array([len(ids)], np.int32)
        engine.decode(np.array([1], np.int32), position, table, logits)
    finally:
        engine.close()
