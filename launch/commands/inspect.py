"""`hybridgen inspect MODEL`."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import typer

from hybridgen.launch.config_command import config_command
from hybridgen.launch.config_sources import ResolvedConfig


def inspect(
    resolved: ResolvedConfig,
    model_argument: Annotated[
        Optional[str],  # noqa: UP045  # typer reads it at run time
        typer.Argument(metavar="MODEL", help="The same as --model.", show_default=False),
    ] = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Show what a model is, without loading its weights."""
    del model_argument  # config_command has put it into the configuration
    import msgspec

    from hybridgen.formats.inspect import inspect_model

    model = inspect_model(resolved.config.model.model, resolved.config)
    spec = model.tokenizer
    facts: dict[str, Any] = {
        "name": model.name,
        "path": model.path,
        "kind": model.kind,
        "parameters": 0 if model.kind == "mock" else model.config.num_parameters,
        "weight_bytes": model.weight_bytes,
        "weight_types": model.weight_types,
        **msgspec.to_builtins(model.config),
        "tokenizer": spec.kind,
        "pre_tokenizer": spec.pre_tokenizer,
        "adds_bos": spec.add_bos,
        "has_chat_template": spec.chat_template is not None,
    }
    if is_json:
        print(msgspec.json.format(msgspec.json.encode(facts)).decode())
        return 0
    for name, value in facts.items():
        print(f"{name:<22} {value}")
    return 0


command = config_command(inspect, sections=["model", "mock"])
