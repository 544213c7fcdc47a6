"""The segments of a running tree: created, kept by descriptor, replaced with the gpu process.

Names are unlinked by ``Segment.create`` at once, so nothing is left behind whoever is killed; the
supervisor's descriptors are what keeps the memory alive for replacements.
"""

from __future__ import annotations

from hybridgen.ipc.board import Board
from hybridgen.ipc.logit_ring import LogitRing
from hybridgen.ipc.segment import Segment
from hybridgen.launch.segment_plan import RING_NAMES, SegmentPlan, TreeGeometry, plan_ring


class TreeSegments:
    """All segments of one tree, by name.

    Args:
        plans: what to create.
        geometry: of the tree; rings are planned again from it when they are replaced.
        instance: random number of the tree, in every header.

    Raises:
        SharedMemoryFull: a segment cannot be allocated; those made before are given back.
    """

    def __init__(self, plans: list[SegmentPlan], geometry: TreeGeometry, instance: int) -> None:
        self._geometry = geometry
        self._instance = instance
        self._segments: dict[str, Segment] = {}
        try:
            for plan in plans:
                # The ring's epoch is the gpu incarnation, which starts at 1.
                epoch = 1 if plan.name in RING_NAMES else 0
                self._segments[plan.name] = self._create(plan, epoch)
        except BaseException:
            self.close()
            raise
        self.board = Board(self._segments["board"].buf)

    @property
    def fds(self) -> dict[str, int]:
        """Name → descriptor, as children inherit them."""
        return {name: segment.fd for name, segment in self._segments.items()}

    def replace_ring(self, epoch: int) -> dict[str, int]:
        """Retire the ring of the dead gpu process and make one for its replacement.

        Samplers that sleep on the old ring are woken by its poison; they close their mappings
        when they have taken the new descriptors.

        Returns:
            Name → descriptor of the new ``logits`` and ``sampled``.

        Raises:
            IpcError: there is no room for both rings at once; the old one stays.
        """
        fresh: dict[str, Segment] = {}
        try:
            for plan in plan_ring(self._geometry):
                fresh[plan.name] = self._create(plan, epoch)
        except BaseException:
            for segment in fresh.values():
                segment.close()
            raise
        LogitRing(self._segments["logits"].buf).poison()
        for name, segment in fresh.items():
            self._segments[name].close()
            self._segments[name] = segment
        return {name: segment.fd for name, segment in fresh.items()}

    def close(self) -> None:
        """Give all memory back (once no child maps it any more)."""
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()

    def _create(self, plan: SegmentPlan, epoch: int) -> Segment:
        return Segment.create(plan.kind, plan.size_bytes, plan.geometry, self._instance, epoch)
