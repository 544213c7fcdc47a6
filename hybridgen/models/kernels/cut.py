"""The checked door to the cut of logits rows, and the device memory that it works in."""

from __future__ import annotations

import torch
import triton

from hybridgen.errors import InternalError
from hybridgen.models.kernels.cut_kernel import BLOCK, CHUNK, cut_kernel, maxima_kernel
from hybridgen.models.kernels.cut_record import FACT_WORDS, HEAD_BYTES, PARAMETER_WORDS
from hybridgen.models.kernels.exact_weight import MAX_VOCAB

MAX_CAPACITY = 1024

#: Chunks of one program that sums.
_PART_CHUNKS = 4
#: Rows from which on candidates and sums are launches of their own: then neither pays for the
#: registers of the other, and a launch is little beside the work.
_MIN_SPLIT_ROWS = 32
#: What a row is widened to where its memory allows, so that it is read 16 bytes at a time.
_ALIGNED_FLOATS = 16


class CutWorkspace:
    """What a step's kernels hand to each other, on the device; sized once, never moved.

    One workspace serves one stream.

    Args:
        max_rows: of a step.
        vocab: logits of a row, at most ``MAX_VOCAB``.
        capacity: candidates of a record, a multiple of 8, at most ``MAX_CAPACITY``.
        device: where.

    Raises:
        InternalError: a size is out of bounds.
    """

    def __init__(
        self, max_rows: int, vocab: int, capacity: int, device: torch.device | str
    ) -> None:
        if not (0 < vocab <= MAX_VOCAB and 0 < capacity <= MAX_CAPACITY and capacity % 8 == 0):
            raise InternalError(
                "rows cannot be cut at this size",
                value=f"{vocab} logits to {capacity} candidates",
                limit=f"{MAX_VOCAB} and a multiple of 8 up to {MAX_CAPACITY}",
            )

        def rows(width: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(max_rows, width, dtype=dtype, device=device)

        self.max_rows, self.vocab, self.capacity = max_rows, vocab, capacity
        self.num_chunks = triton.cdiv(vocab, CHUNK.value)
        #: Powers of two, which kernels are compiled for.
        self.max_chunks = triton.next_power_of_2(self.num_chunks)
        self.max_candidates = max(triton.next_power_of_2(capacity), 64)
        self.maxima = rows(self.num_chunks * CHUNK.value // BLOCK.value, torch.float32)
        self.tops = rows(self.num_chunks, torch.float32)
        self.sums = rows(self.num_chunks, torch.float64)
        # Zero between kernels: the program that arrives last puts its counter back.
        self.counters = rows(1, torch.int32)
        self.hits = rows(self.max_candidates // 2, torch.int32)
        self.values = rows(self.max_candidates, torch.float32)
        self.ids = rows(self.max_candidates, torch.int32)
        self.keys = rows(self.max_candidates, torch.int64)
        self.counts = rows(1, torch.int32)
        self.facts = rows(FACT_WORDS.value, torch.float32)
        # Empty between kernels; see ``urgent_rows``.
        self.urgent = torch.zeros(2 + max_rows, dtype=torch.int32, device=device)

    @property
    def cut_bytes(self) -> int:
        """Of one row's record."""
        return int(HEAD_BYTES.value) + 8 * self.capacity

    def check_rows(self, logits: torch.Tensor, params: torch.Tensor, record: int) -> None:
        """Check the operands that all doors share.

        Raises:
            InternalError: a shape, dtype, stride or address does not fit.
        """
        num_rows = len(logits)
        problems = {
            "logits": logits.shape != (num_rows, self.vocab)
            or logits.dtype != torch.float32
            or (self.vocab > 1 and logits.stride(1) != 1),
            "rows": not 0 < num_rows <= self.max_rows,
            "params": params.shape != (num_rows, PARAMETER_WORDS.value)
            or params.dtype != torch.int32
            or not params.is_contiguous(),
            "record": record <= 0 or record % 8 != 0,
        }
        wrong = [name for name, is_wrong in problems.items() if is_wrong]
        if wrong:
            raise InternalError("operands of the cut do not fit", value=", ".join(wrong))


def readable_width(logits: torch.Tensor) -> int:
    """Floats of every row that may be read: past the vocabulary where padding lies there."""
    num_rows, vocab = logits.shape
    wanted = triton.cdiv(vocab, _ALIGNED_FLOATS) * _ALIGNED_FLOATS
    end = logits.storage_offset() + (num_rows - 1) * logits.stride(0) + wanted
    floats = logits.untyped_storage().nbytes() // logits.itemsize
    return wanted if wanted <= logits.stride(0) and end <= floats else vocab


def cut_rows(
    logits: torch.Tensor,
    params: torch.Tensor,
    step: int,
    record: int,
    workspace: CutWorkspace,
    *,
    is_choosing: bool = False,
) -> None:
    """Write the cut of every row with the flag ROW_CUT: a struct hg_cut and its candidates.

    Reads such rows once for the maxima and, where sums of weights are needed (always, but for
    greedy rows and some that the device chooses for), once more; writes 64 + 8 · count bytes of
    each record. Two launches for few rows, three for many.

    Args:
        logits: float32[num_rows, vocab]; rows may be further apart than they are long.
        params: int32[num_rows, PARAMETER_WORDS], see ``scheduler.row_parameters``.
        step: for the records.
        record: address, as the device sees it, of the first row's record; the others follow,
            ``workspace.cut_bytes`` apart.
        workspace: of this stream.
        is_choosing: ``choose_rows`` follows: rows with the flag ROW_CHOOSE get their candidates
            on the device only, and their record from there.

    Raises:
        InternalError: operands do not fit.
    """
    workspace.check_rows(logits, params, record)
    num_rows, w = len(logits), workspace
    width, stride = readable_width(logits), logits.stride(0)
    maxima_kernel[(num_rows, w.num_chunks)](
        logits, params, w.maxima, w.tops, stride, width, w.vocab, w.num_chunks, num_warps=4
    )
    num_parts = triton.cdiv(w.num_chunks, _PART_CHUNKS)
    forms = [(True, True)] if num_rows < _MIN_SPLIT_ROWS else [(True, False), (False, True)]
    for has_candidates, has_sums in forms:
        num_programs = int(has_candidates) + num_parts * int(has_sums)
        cut_kernel[(num_rows, num_programs)](
            logits, params, w.maxima, w.tops, w.sums, w.counters, w.hits, w.values, w.ids,
            w.counts, w.facts, record, step, int(is_choosing), stride, width, w.vocab,
            w.num_chunks, num_parts, w.capacity,
            MAX_CHUNKS=w.max_chunks, MAX_CANDIDATES=w.max_candidates, PART_CHUNKS=_PART_CHUNKS,
            HAS_CANDIDATES=has_candidates, HAS_SUMS=has_sums,
            num_warps=16 if has_candidates else 8, enable_fp_fusion=False,
        )  # fmt: skip
