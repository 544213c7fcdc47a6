"""Turns a function of a resolved configuration into a command with every option of config.py."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from hybridgen.errors import ConfigError
from hybridgen.launch import sampling_options
from hybridgen.launch.config_fields import ConfigField, config_fields, section_types
from hybridgen.launch.config_sources import resolve
from hybridgen.request import SamplingParams

#: llama.cpp's short forms, where the meaning is the same.
SHORT_FORMS = {
    "model": "-m",
    "max_model_len": "-c",
    "num_compute_threads": "-t",
    "max_num_seqs": "-np",
    "port": "-p",
}
#: What a command can say about a tree that it starts for itself: that one has no gateway.
PRIVATE_SECTIONS = tuple(section for section in section_types() if section != "http")


def config_command(
    body: Callable[..., int],
    *,
    sections: Iterable[str] | None = None,
    sampling_defaults: SamplingParams | None = None,
) -> Callable[..., None]:
    """A typer command around ``body(resolved, **own)``.

    ``body``'s first parameter receives the ``ResolvedConfig``; its others are options of its own.
    A parameter called ``model_argument`` is the positional MODEL, the same as ``--model``; one
    called ``sampling`` receives the ``SamplingParams`` of the options that stand for them, over
    ``sampling_defaults``. All
    options of ``sections`` (every section when None) and ``--config`` are added behind them.
    """
    signature = inspect.signature(body, eval_str=True).parameters
    is_sampling = "sampling" in signature
    own = [parameter for name, parameter in signature.items() if name != "sampling"][1:]
    wanted = None if sections is None else set(sections)
    fields = [f for f in config_fields().values() if wanted is None or f.section in wanted]

    @functools.wraps(body)
    def command(**arguments: Any) -> None:
        flags = {field.name: arguments.pop(field.name) for field in fields}
        file = arguments.pop("config_file")
        if "model_argument" in arguments:
            flags["model"] = _one_model(arguments.pop("model_argument"), flags["model"])
        if is_sampling:
            arguments["sampling"] = sampling_options.take(
                arguments, sampling_defaults or SamplingParams()
            )
        resolved = resolve(flags, os.environ, None if file is None else Path(file))
        raise typer.Exit(body(resolved, **arguments))

    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    parameters += sampling_options.parameters() if is_sampling else []
    parameters += [_parameter(field) for field in fields]
    parameters.append(_config_file_parameter())
    # What typer reads: neither the wrapper's own signature nor the body's.
    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del command.__wrapped__
    return command


def _parameter(field: ConfigField) -> inspect.Parameter:
    short = [SHORT_FORMS[field.name]] if field.name in SHORT_FORMS else []
    default = str(field.default).lower() if field.is_switch else field.default
    shown = "" if default == "" else f" [default: {default}]"
    option = typer.Option(
        field.flag,
        *short,
        help=f"{field.doc}{shown}",
        metavar=_metavar(field),
        show_default=False,
        rich_help_panel=field.section,
    )
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Optional[str], option],  # noqa: UP045  # typer reads it at run time
    )


def _metavar(field: ConfigField) -> str:
    text = field.type_text
    if "|" in text:
        return "[" + text.replace(" ", "") + "]"
    return text.split(",")[0].upper()


def _config_file_parameter() -> inspect.Parameter:
    option = typer.Option(
        "--config",
        help="TOML or JSON file with options as keys; flags and HYBRIDGEN_* variables come first.",
        metavar="FILE",
        show_default=False,
    )
    return inspect.Parameter(
        "config_file",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Optional[str], option],  # noqa: UP045  # typer reads it at run time
    )


def _one_model(argument: str | None, flag: str | None) -> str | None:
    if argument is not None and flag is not None and argument != flag:
        raise ConfigError(
            "two models are named",
            value=f"{argument} and --model {flag}",
            remedy="Name one, as the argument or with --model",
        )
    return flag if argument is None else argument
