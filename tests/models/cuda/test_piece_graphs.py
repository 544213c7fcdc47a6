"""Which graph is replayed for what, with graphs that only write down what they hold."""

from __future__ import annotations

import gc

import pytest
import torch

from hybridgen.models.cuda.piece_graphs import PieceGraphs

ENQUEUED: list[tuple[int, int]] = []
REPLAYED: list[list[tuple[int, int]]] = []


class Graph:
    def capture_begin(self, pool: object) -> None:
        assert pool == "pool"
        assert not gc.isenabled()
        self.first = len(ENQUEUED)

    def capture_end(self) -> None:
        self.held = ENQUEUED[self.first :]

    def replay(self) -> None:
        REPLAYED.append(self.held)


class Stream:
    def synchronize(self) -> None:
        pass


@pytest.fixture
def graphs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    ENQUEUED.clear()
    REPLAYED.clear()

    def enqueue(part: int, num_rows: int) -> None:
        ENQUEUED.append((part, num_rows))

    return PieceGraphs([64, 128], 3, enqueue, Stream())  # type: ignore[arg-type]


def test_a_replay_enqueues_its_part_and_nothing_else(graphs):
    for num_rows, part in ((128, 2), (64, 0), (64, 1)):
        graphs.replay(part, num_rows)
    assert REPLAYED == [[(2, 128)], [(0, 64)], [(1, 64)]]


def test_every_part_was_enqueued_before_any_was_captured(graphs):  # noqa: ARG001
    parts = [(part, 128) for part in range(3)]
    assert ENQUEUED[:6] == parts + parts
    assert gc.isenabled()
