"""A model's facts as a tree: drawn on a terminal, indented lines elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from hybridgen.launch.model_facts import DeviceFit, TensorGroup
from hybridgen.launch.preflight import format_bytes
from hybridgen.printable import printable


class Branch(NamedTuple):
    """A line and what hangs below it."""

    text: str
    below: Sequence[Branch] = ()


def model_tree(
    facts: Mapping[str, Any], groups: Sequence[TensorGroup], fits: Sequence[DeviceFit], device: str
) -> Branch:
    """The whole tree.

    Args:
        facts: see ``model_facts``.
        groups: see ``group_tensors``.
        fits: see ``device_fits``; none for a model without weights.
        device: its memory, for people.
    """
    metadata = [Branch(f"{name:<22} {_value(value)}") for name, value in facts.items()]
    branches = [Branch("metadata", metadata)]
    if groups:
        num_tensors = sum(max(1, group.num_layers) * len(group.tensors) for group in groups)
        num_bytes = format_bytes(sum(group.num_bytes for group in groups))
        branches.append(
            Branch(f"tensors: {num_tensors}, {num_bytes}", [_group(group) for group in groups])
        )
    if fits:
        below = [Branch(f"{fit.weight_bits} bit", _fit_lines(fit)) for fit in fits]
        branches.append(Branch(f"memory of a device with {device}, KV cache on it", below))
    return Branch(str(facts["name"]), branches)


def _group(group: TensorGroup) -> Branch:
    lines = [
        Branch(f"{tensor.name:<36} {tensor.dtype:<5} {_shape(tensor.shape)}")
        for tensor in group.tensors
    ]
    times = f" ({group.num_layers} layers)" if group.num_layers > 1 else ""
    return Branch(f"{group.title}{times}, {format_bytes(group.num_bytes)}", lines)


def _fit_lines(fit: DeviceFit) -> list[Branch]:
    if not fit.fits:
        return [Branch(fit.plan)]
    return [
        Branch(f"weights {format_bytes(fit.weight_bytes)}"),
        Branch(f"workspace {format_bytes(fit.workspace_bytes + fit.reserve_bytes)}"),
        Branch(
            f"KV cache {format_bytes(fit.kv_bytes)}: {fit.num_kv_blocks} blocks, "
            f"{fit.num_kv_tokens} tokens, {fit.num_contexts:.1f} whole contexts"
        ),
    ]


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape))


def _value(value: Any) -> str:
    text = printable(str(value))
    return text if len(text) <= 120 else f"{text[:119]}…"


def print_branch(root: Branch, stream: TextIO) -> None:
    """Print the tree."""
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        _print_rich(root, stream)
        return
    for line in plain_lines(root):
        print(line, file=stream)


def plain_lines(branch: Branch, depth: int = 0) -> Iterator[str]:
    """Each line indented by its depth."""
    yield "  " * depth + branch.text
    for below in branch.below:
        yield from plain_lines(below, depth + 1)


def _print_rich(root: Branch, stream: TextIO) -> None:
    from rich.console import Console  # noqa: PLC0415  # only on a terminal
    from rich.text import Text  # noqa: PLC0415
    from rich.tree import Tree  # noqa: PLC0415

    def grow(tree: Tree, branch: Branch) -> None:
        for below in branch.below:
            grow(tree.add(Text(below.text, no_wrap=True, overflow="ellipsis")), below)

    tree = Tree(Text(root.text, style="bold"))
    grow(tree, root)
    Console(file=stream).print(tree)
