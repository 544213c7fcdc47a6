"""`hybridgen inspect MODEL`."""

from __future__ import annotations

import sys
from typing import Annotated, Optional

import typer

from hybridgen.launch.config_command import config_command
from hybridgen.launch.config_sources import ResolvedConfig


def inspect(
    resolved: ResolvedConfig,
    model_argument: Annotated[
        Optional[str],  # noqa: UP045  # typer reads it at run time
        typer.Argument(metavar="MODEL", help="The same as --model.", show_default=False),
    ] = None,
    *,
    device_memory: Annotated[
        str, typer.Option("--device-memory", help="Of the device that memory is planned for.")
    ] = "80GiB",
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare every byte with the file's hashes.")
    ] = False,
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Show what a model is, without loading its weights: metadata, tensors, and the memory plan.

    The plan counts a batch of --max-num-seqs sequences and --max-model-len tokens of context.
    """
    del model_argument  # config_command has put it into the configuration
    import msgspec

    from hybridgen.formats.inspect import inspect_model, verify_model
    from hybridgen.formats.tensor_list import list_tensors
    from hybridgen.launch.model_facts import device_fits, group_tensors, model_facts
    from hybridgen.launch.model_tree import model_tree, print_branch
    from hybridgen.memory_amount import bytes_of

    config = resolved.config
    info = inspect_model(config.model.model, config)
    total_bytes = bytes_of(device_memory, sys.maxsize, name="device_memory")
    if verify:
        verify_model(info)
    tensors = list_tensors(info)
    facts = model_facts(info)
    fits = [] if info.kind == "mock" else device_fits(info, config, total_bytes)
    if is_json:
        facts |= {"is_verified": verify, "tensors": tensors, "memory": fits}
        print(msgspec.json.format(msgspec.json.encode(facts)).decode())
        return 0
    print_branch(model_tree(facts, group_tensors(tensors), fits, device_memory), sys.stdout)
    if verify:
        print(f"verified: every byte of {len(tensors)} tensors is as it was written")
    return 0


command = config_command(inspect, sections=["model", "scheduler", "device", "mock"])
