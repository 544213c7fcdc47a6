"""Sizes and geometries of all segments of a tree: pure."""

from __future__ import annotations

from typing import NamedTuple

from hybridgen.ipc.board import Board
from hybridgen.ipc.logit_ring import LogitRing
from hybridgen.ipc.logprob_ring import LogprobRing
from hybridgen.ipc.sampled_ring import SampledRing
from hybridgen.ipc.segment import SegmentKind
from hybridgen.ipc.slot_table import SlotTable
from hybridgen.ipc.token_store import TokenStore

#: The gpu process fills one step while the samplers read the other.
RING_DEPTH = 2
#: A device is given a step ahead, whose headers are written while the one before is read.
DEVICE_RING_DEPTH = 3
#: Candidates of a row that a device picks out: what top_k and top_p usually leave, in 4 KiB.
DEVICE_CUT_CAPACITY = 512
#: The segments of ``plan_ring``.
RING_NAMES = frozenset({"logits", "sampled"})
#: Log-probability records kept per slot: how far a detokenizer may lag behind.
LOGPROB_DEPTH = 512


class TreeGeometry(NamedTuple):
    """The numbers that every layout follows from."""

    num_slots: int
    max_model_len: int
    max_rows: int
    vocab_size: int
    num_lanes: int
    num_processes: int
    ring_depth: int = RING_DEPTH
    cut_capacity: int = 0
    """Candidates in the cut of a row; 0: rows have none."""


class SegmentPlan(NamedTuple):
    """One segment to be created."""

    name: str
    kind: SegmentKind
    size_bytes: int
    geometry: tuple[int, ...]
    flags: str
    """Options that make it smaller."""


def plan_segments(tree: TreeGeometry) -> list[SegmentPlan]:
    """All segments of the tree, largest concern first."""
    return [
        *plan_ring(tree),
        _plan_slots(tree),
        _plan_tokens(tree),
        _plan_logprobs(tree),
        SegmentPlan(
            "board",
            SegmentKind.BOARD,
            Board.size_bytes(tree.num_processes),
            Board.make_geometry(tree.num_processes),
            "--num-samplers, --num-tokenizers, --num-detokenizers",
        ),
    ]


def plan_ring(tree: TreeGeometry) -> list[SegmentPlan]:
    """The two segments that belong to one incarnation of the gpu process."""
    rows = (tree.ring_depth, tree.max_rows, tree.vocab_size)
    sampled = (tree.ring_depth, tree.max_rows, tree.num_lanes)
    return [
        SegmentPlan(
            "logits",
            SegmentKind.LOGITS,
            LogitRing.size_bytes(*rows, tree.cut_capacity),
            LogitRing.make_geometry(*rows, tree.num_lanes, tree.cut_capacity),
            "--max-num-seqs",
        ),
        SegmentPlan(
            "sampled",
            SegmentKind.SAMPLED,
            SampledRing.size_bytes(*sampled),
            SampledRing.make_geometry(*sampled),
            "--max-num-seqs",
        ),
    ]


def _plan_slots(tree: TreeGeometry) -> SegmentPlan:
    return SegmentPlan(
        "slots",
        SegmentKind.SLOTS,
        SlotTable.size_bytes(tree.num_slots),
        SlotTable.make_geometry(tree.num_slots, tree.max_model_len),
        "--max-num-seqs, --backlog-limit",
    )


def _plan_tokens(tree: TreeGeometry) -> SegmentPlan:
    return SegmentPlan(
        "tokens",
        SegmentKind.TOKENS,
        TokenStore.size_bytes(tree.num_slots, tree.max_model_len),
        TokenStore.make_geometry(tree.num_slots, tree.max_model_len),
        "--max-model-len, --backlog-limit",
    )


def _plan_logprobs(tree: TreeGeometry) -> SegmentPlan:
    return SegmentPlan(
        "logprobs",
        SegmentKind.LOGPROBS,
        LogprobRing.size_bytes(tree.num_slots, LOGPROB_DEPTH),
        LogprobRing.make_geometry(tree.num_slots, LOGPROB_DEPTH),
        "--max-num-seqs, --backlog-limit",
    )
