"""Who holds up a decode step: what each kernel of a trace adds to it, by its place in the model.

Kernels that overlap cannot be judged by their durations: with programmatic dependent launch one
begins long before it can work. What a kernel adds is the time from the end of all before it to its
own end; the sum over all kernels is the step.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

_FIRST = "_embedding_kernel"
_PRODUCTS = ("qkv", "output", "gate_up", "down")
_PRODUCT_NAMES = re.compile(r"_dot_kernel|gemv|gemm|nvjet|cutlass|xmma", re.IGNORECASE)
_PLACES = {
    "embedding": "embedding",
    "norm_kernel": "norm",
    "limb_rows": "limbs",
    "decode_attention": "attention",
    "gate_kernel": "gate",
    "begin": "state",
    "advance": "state",
}


class Kernel(NamedTuple):
    """One launch in a trace; times in microseconds."""

    name: str
    begin_us: float
    end_us: float


class Addition(NamedTuple):
    """What kernels at one place of the model add to a step, in microseconds.

    Attributes:
        place: in the model.
        name: of the kernel.
        count: launches in a step.
        added_us: by all of them.
        duration_us: mean of one, overlap included.
        gap_us: of all launches, from the end of all before to their own start.
    """

    place: str
    name: str
    count: int
    added_us: float
    duration_us: float
    gap_us: float


def read_kernels(trace: dict[str, Any]) -> list[Kernel]:
    """Kernels of a Chrome trace as ``torch.profiler`` writes it, by their start."""
    kernels = [
        Kernel(event["name"], event["ts"], event["ts"] + event["dur"])
        for event in trace["traceEvents"]
        if event.get("cat") == "kernel"
    ]
    return sorted(kernels, key=lambda kernel: kernel.begin_us)


def cut_steps(kernels: Sequence[Kernel]) -> list[list[Kernel]]:
    """Whole steps, from embedding to embedding; the last is left out, for its end is not seen."""
    starts = [number for number, kernel in enumerate(kernels) if kernel.name.startswith(_FIRST)]
    return [list(kernels[a:b]) for a, b in itertools.pairwise(starts)]


def places(names: Iterable[str], num_layers: int) -> list[str]:
    """The place of each kernel of a step: products by their order, the others by their name."""
    found = []
    num_products = 0
    for name in names:
        if "reduce" in name and found:
            found.append(found[-1])  # of a library's product
        elif _PRODUCT_NAMES.search(name):
            is_head = num_products == len(_PRODUCTS) * num_layers
            found.append("head" if is_head else _PRODUCTS[num_products % len(_PRODUCTS)])
            num_products += 1
        else:
            place = (place for part, place in _PLACES.items() if part in name)
            found.append(next(place, "other"))
    return found


def additions(steps: Sequence[Sequence[Kernel]], num_layers: int) -> list[Addition]:
    """Means over ``steps``, the largest first."""
    sums: dict[tuple[str, str], list[float]] = {}
    for step in steps:
        done_us = step[0].begin_us
        for kernel, place in zip(step, places((k.name for k in step), num_layers), strict=True):
            entry = sums.setdefault((place, kernel.name), [0, 0.0, 0.0, 0.0])
            entry[0] += 1
            entry[1] += max(0.0, kernel.end_us - done_us)
            entry[2] += kernel.end_us - kernel.begin_us
            entry[3] += max(0.0, kernel.begin_us - done_us)
            done_us = max(done_us, kernel.end_us)
    result = [
        Addition(
            *key,
            round(count / len(steps)),
            added_us / len(steps),
            duration_us / count,
            gap_us / len(steps),
        )
        for key, (count, added_us, duration_us, gap_us) in sums.items()
    ]
    return sorted(result, key=lambda addition: -addition.added_us)
