"""Where logits leave the device: what samplers need at once, and whole rows behind it.

A row of logits is up to half a megabyte, and most of the time a sampler needs a few hundred of
them. So the device cuts each row to those (``kernels.cut``), straight into the ring, and publishes
the step. Whole rows of those that the cut does not decide follow at once; then all rows, on a
stream of their own, while samplers already answer and while the next step is computed: so whatever
a sampler finds, it need not ask for a row.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from hybridgen.models.cuda.batch_state import BatchState
from hybridgen.models.cuda.decoder import NUM_LOGITS_BUFFERS, Decoder
from hybridgen.models.cuda.driver import DriverStream
from hybridgen.models.cuda.hand_off import RingRegions
from hybridgen.models.cuda.prefill import Prefiller
from hybridgen.models.cuda.streams import Mark, is_through, make_stream
from hybridgen.models.kernels.choose import choose_rows
from hybridgen.models.kernels.cut import CutWorkspace, cut_rows
from hybridgen.models.kernels.urgent_rows import send_urgent_rows

_FLOAT_BYTES = 4


class Outlet:
    """Logits of steps on their way into the ring.

    Args:
        decoder: logits of decoded rows.
        prefiller: first logits of prompts.
        state: parameters of the rows, and the place for what the device chooses itself.
        regions: the ring.
        stream: that steps are computed on.
    """

    def __init__(
        self,
        decoder: Decoder,
        prefiller: Prefiller,
        state: BatchState,
        regions: RingRegions,
        stream: torch.cuda.Stream,
    ) -> None:
        self._decoder = decoder
        self._prefiller = prefiller
        self._state = state
        self._regions = regions
        self._stream = stream
        self._driver_stream = DriverStream(stream.cuda_stream)
        self._copy_stream = make_stream(state.items.device)
        self._driver_copy_stream = DriverStream(self._copy_stream.cuda_stream)
        self._emitted = Mark()
        self._copied = [Mark() for _ in range(NUM_LOGITS_BUFFERS)]
        ring = regions.ring
        self._row_bytes = ring.row_floats * _FLOAT_BYTES
        self._workspace: CutWorkspace | None = None

    def answers_address(self, step: int) -> int:
        """Where the device finds the samplers' answers to a step; 0 for step 0: its own choices."""
        regions = self._regions
        if step == 0:
            return 0
        return regions.sampled_region.device_address + regions.sampled.result_offset(step)

    def reserve(self, step: int) -> None:
        """Let the stream wait until the rows that this step overwrites are copied."""
        self._copied[step % NUM_LOGITS_BUFFERS].hold(self._stream)

    def collect(self, step: int, num_decode: int, logits_slots: Sequence[int]) -> None:
        """Put first logits behind those of the decoded rows."""
        target = self._decoder.logits(step).data_ptr() + num_decode * self._row_bytes
        first = self._prefiller.logits.data_ptr()
        for slot in logits_slots:
            source = first + slot * self._row_bytes
            self._driver_stream.copy(target, source, self._row_bytes)
            target += self._row_bytes

    def cut(self, step: int, num_rows: int, *, is_choosing: bool) -> None:
        """Write the rows' cuts into the ring; choose their tokens too, if wanted."""
        ring = self._regions.ring
        rows = self._decoder.logits(step)[:num_rows, : ring.vocab_size]
        parameters = self._state.parameters[:num_rows]
        address = self._regions.logits_region.device_address + ring.cut_offset_of(step)
        workspace = self._cut_workspace()
        with torch.cuda.stream(self._stream):
            cut_rows(rows, parameters, step, address, workspace, is_choosing=is_choosing)
            if is_choosing:
                results = self._state.results[:num_rows]
                choose_rows(rows, parameters, step, address, results, workspace)

    def copy_rows(self, step: int, num_rows: int) -> None:
        """Copy whole rows on this stream; whoever publishes the step says that they are there."""
        self._copy(self._driver_stream, step, num_rows)

    def copy_rows_aside(self, step: int, num_rows: int) -> None:
        """Send urgent rows, then copy all beside what follows; say in the ring what is there."""
        self._send_urgent_rows(step, num_rows)
        self._emitted.record(self._stream)
        self._emitted.hold(self._copy_stream)
        self._copy(self._driver_copy_stream, step, num_rows)
        ring, base = self._regions.ring, self._regions.logits_region.device_address
        self._driver_copy_stream.write_word(base + ring.whole_offset(step), step)
        self._copied[step % NUM_LOGITS_BUFFERS].record(self._copy_stream)

    def prepare_cuts(self) -> None:
        """Compile the kernels, for rows whose parameters want nothing done."""
        max_rows = self._regions.ring.max_rows
        # A number of more than 31 bits is of another type to a kernel.
        for step, is_choosing in itertools.product((0, 2**31), (False, True)):
            for num_rows in sorted({1, min(2, max_rows), max_rows}):
                self.cut(step, num_rows, is_choosing=is_choosing)
                self._send_urgent_rows(step, num_rows, is_sending=False)
        self._stream.synchronize()

    def is_quiet(self) -> bool:
        """Whether nothing is under way aside."""
        return is_through(self._copy_stream)

    def _send_urgent_rows(self, step: int, num_rows: int, *, is_sending: bool = True) -> None:
        """Behind the cuts on their stream, where nothing changes parameters or candidates yet."""
        ring, base = self._regions.ring, self._regions.logits_region.device_address
        with torch.cuda.stream(self._stream):
            send_urgent_rows(
                self._decoder.logits(step)[:num_rows, : ring.vocab_size],
                self._state.parameters[:num_rows],
                step,
                base + ring.cut_offset_of(step),
                base + ring.logits_offset(step),
                ring.row_floats,
                self._cut_workspace(),
                is_sending=is_sending,
            )

    def _cut_workspace(self) -> CutWorkspace:
        if self._workspace is None:
            ring = self._regions.ring
            self._workspace = CutWorkspace(
                ring.max_rows, ring.vocab_size, ring.cut_capacity, self._state.items.device
            )
        return self._workspace

    def _copy(self, stream: DriverStream, step: int, num_rows: int) -> None:
        target = self._regions.logits_region.host_address + self._regions.ring.logits_offset(step)
        source = self._decoder.logits(step).data_ptr()
        stream.copy_to_host(target, source, num_rows * self._row_bytes)
