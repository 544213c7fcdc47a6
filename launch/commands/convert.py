"""`hybridgen convert SRC --output X.hybridgen`, also installed as `gguf2hybridgen`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from hybridgen.errors import ConfigError
from hybridgen.launch.exit_codes import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from hybridgen.formats.serve_hints import ServeHints

DTYPES = ("auto", "float32", "bfloat16", "float16")
POLICIES = ("gpu", "hybrid", "park")


Source = Annotated[
    Optional[str],  # noqa: UP045  # typer reads these at run time
    typer.Argument(metavar="SRC", help="GGUF or .hybridgen file, folder, or demo."),
]
Input = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--input", help="The same as SRC.", show_default=False),
]
Output = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--output", "-o", metavar="X.hybridgen", help="The file to make."),
]
Dtype = Annotated[
    str,
    typer.Option(
        metavar="[" + "|".join(DTYPES) + "]",
        help="Of the weights; auto is bfloat16, or what a .hybridgen file has.",
    ),
]
Bits = Annotated[
    int,
    typer.Option(
        metavar="[16|8]",
        help="Bits of a weight; 8: matrices are INT8 with a scale per output row.",
    ),
]
ContextHint = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(help="Hint: context length to serve.", show_default=False),
]
BatchHint = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(help="Hint: most sequences in one decode step.", show_default=False),
]
ChunkHint = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(help="Hint: most prompt tokens between decode steps.", show_default=False),
]
PolicyHint = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        metavar="[" + "|".join(POLICIES) + "]",
        help="Hint: where keys and values belong; kept, but not followed yet.",
        show_default=False,
    ),
]
HostMemoryHint = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        metavar="BYTES",
        help="Hint: host memory for keys and values, as 8GiB; hybrid and park need it.",
        show_default=False,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an output that exists.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def command(
    source_argument: Source = None,
    *,
    source_option: Input = None,
    output: Output = None,
    dtype: Dtype = "auto",
    quantize_weights: Bits = 16,
    max_model_len: ContextHint = None,
    max_num_seqs: BatchHint = None,
    prefill_chunk: ChunkHint = None,
    kv_cache_policy: PolicyHint = None,
    cpu_kv_mem: HostMemoryHint = None,
    force: Force = False,
    is_json: Json = False,
) -> None:
    """Make one .hybridgen file of a model: weights, configuration, tokenizer, chat template.

    Hints become what `hybridgen serve` takes when neither a flag nor the environment nor a config
    file says otherwise. The output appears whole or not at all.
    """
    from hybridgen.launch.convert import ConvertOrder, convert
    from hybridgen.launch.signals import SignalQueue, StopAsked

    _check_choice("--dtype", dtype, DTYPES)
    _check_choice("--quantize-weights", quantize_weights, (16, 8))
    order = ConvertOrder(
        source=_one_source(source_argument, source_option),
        output=_checked_output(output),
        dtype=dtype,
        is_int8=quantize_weights == 8,
        hints=_hints(
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            prefill_chunk=prefill_chunk,
            kv_cache_policy=kv_cache_policy,
            cpu_kv_mem=cpu_kv_mem,
        ),
        is_replacing=force,
    )
    try:
        with SignalQueue() as signals, signals.interrupting():
            convert(order, is_json=is_json)
    except StopAsked:
        print("interrupted; nothing was written", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _one_source(argument: str | None, option: str | None) -> str:
    source = argument if option is None else option
    if source is None or (argument is not None and argument != source):
        raise ConfigError(
            "a conversion has one source",
            value="none" if source is None else f"{argument} and --input {option}",
            remedy="Name a GGUF file or a model's folder, as the argument or with --input",
        )
    return source


def _checked_output(output: Path | None) -> Path:
    from hybridgen.formats.hybridgen_file import SUFFIX
    from hybridgen.formats.locate import check_name

    if output is None or output.suffix != SUFFIX:
        raise ConfigError(
            "the output is a .hybridgen file",
            param="output",
            value="none" if output is None else str(output),
            remedy="Name it, as in --output model.hybridgen",
        )
    path = output.expanduser().absolute()
    check_name(path, "output")
    return path


def _hints(**values: int | str | None) -> ServeHints:
    import msgspec

    from hybridgen.formats.serve_hints import ServeHints

    policy = values["kv_cache_policy"]
    if policy is not None:
        _check_choice("--kv-cache-policy", policy, POLICIES)
    hints = msgspec.convert(values, ServeHints)
    hints.check()
    return hints


def _check_choice(option: str, value: int | str, accepted: Sequence[int | str]) -> None:
    if value not in accepted:
        raise ConfigError(
            f"{option} cannot be that",
            value=value,
            limit=" | ".join(map(str, accepted)),
            remedy="Give it one of these",
        )
