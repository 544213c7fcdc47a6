"""Attention of many tokens in one call, with the sums that let parts of it be merged.

Three ways: torch's flash kernel (Dao 2023) takes sequences of any lengths; cuDNN's takes half its
time on Hopper, but makes a plan of some 40 ms on the host for every new shape and layout, so it is
used for shapes that were prepared; plain torch is for float32 and where no device is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from hybridgen.errors import InternalError
from hybridgen.models.kernels.merge_attention import merge_attention

logger = logging.getLogger(__name__)

#: The two libraries round to bf16 in different places.
_MAX_DIFFERENCE = 2e-2


class Attended(NamedTuple):
    """What a call gives.

    Attributes:
        out: [num_rows, num_heads, head_dim].
        sums: float32, logarithms of the sums of the exponentials of the scaled scores; as the
            libraries have it: [num_heads, num_rows], or [num_sequences, num_heads, longest], or
            that with another dimension of 1.
    """

    out: torch.Tensor
    sums: torch.Tensor

    def sums_of(self, number: int, rows: slice) -> torch.Tensor:
        """[num_heads, len(rows)] of a sequence, whose first row is ``rows.start``."""
        if self.sums.dim() == 2:
            return self.sums[:, rows]
        return self.sums[number].flatten(1)[:, : rows.stop - rows.start]


class AttentionCalls(Protocol):
    """The calls that ``PromptAttention`` is made of.

    Attributes:
        segments: lengths of keys that ``over`` is quick at, the longest first; empty: any.
        window: it is quick where the number of queries is a multiple of this.
    """

    segments: tuple[int, ...]
    window: int

    def within(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        offsets: torch.Tensor,
        lengths: Sequence[int],
    ) -> Attended:
        """Causal attention of sequences side by side, each within itself.

        Args:
            query: [n, num_heads, head_dim]; rows may be further apart than they are long.
            keys: [n, num_kv_heads, head_dim], likewise.
            values: as keys.
            offsets: int32[len(lengths) + 1] on the device: where sequences begin, and n.
            lengths: rows of each.
        """
        ...

    def over(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Attended:
        """Attention of all queries over all keys.

        Args:
            query: [n, num_heads, head_dim].
            keys: [num_kv_heads, m, head_dim].
            values: as keys.
        """
        ...

    def merge(
        self, out: torch.Tensor, sums: torch.Tensor, part: torch.Tensor, part_sums: torch.Tensor
    ) -> None:
        """See ``merge_attention``."""
        ...


class PlainCalls:
    """Plain torch, in float32.

    Args:
        scale: multiplies q · k.
        segments: see ``AttentionCalls``.
        window: likewise.
    """

    def __init__(self, scale: float, segments: tuple[int, ...] = (), window: int = 1) -> None:
        self.scale = scale
        self.segments = segments
        self.window = window

    def within(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        offsets: torch.Tensor,  # noqa: ARG002  for those who read them on the device
        lengths: Sequence[int],
    ) -> Attended:
        """See ``AttentionCalls``."""
        sequences = zip(
            *(torch.split(x, list(lengths)) for x in (query, keys, values)), strict=True
        )
        parts = [
            _attend_plainly(q, k.transpose(0, 1), v.transpose(0, 1), self.scale, is_causal=True)
            for q, k, v in sequences
        ]
        return Attended(torch.cat([p.out for p in parts]), torch.cat([p.sums for p in parts], 1))

    def over(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Attended:
        """See ``AttentionCalls``."""
        return _attend_plainly(query, keys, values, self.scale, is_causal=False)

    def merge(
        self, out: torch.Tensor, sums: torch.Tensor, part: torch.Tensor, part_sums: torch.Tensor
    ) -> None:
        """See ``merge_attention``."""
        total = torch.logaddexp(sums, part_sums)
        own, other = (torch.exp(x - total).T[:, :, None] for x in (sums, part_sums))
        out.copy_(out * own + part * other)
        sums.copy_(total)


class FlashCalls:
    """torch's flash kernel, for bf16 and fp16 on a device.

    Args:
        scale: multiplies q · k.
    """

    segments: tuple[int, ...] = ()
    window = 1

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def within(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        offsets: torch.Tensor,
        lengths: Sequence[int],
    ) -> Attended:
        """See ``AttentionCalls``; one kernel."""
        longest = max(lengths)
        forward = torch.ops.aten._flash_attention_forward.default
        results = forward(
            query, keys, values, offsets, offsets, longest, longest, 0.0, True, False,
            scale=self.scale,
        )  # fmt: skip
        return Attended(results[0], results[1])

    def over(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Attended:
        """See ``AttentionCalls``."""
        forward = torch.ops.aten._scaled_dot_product_flash_attention.default
        wide = query[None].transpose(1, 2)
        results = forward(wide, keys[None], values[None], 0.0, False, False, scale=self.scale)
        return Attended(results[0][0].transpose(0, 1), results[1])

    def merge(
        self, out: torch.Tensor, sums: torch.Tensor, part: torch.Tensor, part_sums: torch.Tensor
    ) -> None:
        """See ``merge_attention``."""
        merge_attention(out, sums, part, part_sums)


class CudnnCalls(FlashCalls):
    """cuDNN's kernel for the shapes that ``prepare`` was called for; else the flash kernel.

    Sequences of one call must be equally long. Those of most pieces are not, and one call for each
    would need a plan for each length, so they go to the flash kernel all together: for short ones
    that costs little, and a long one usually has the piece to itself.
    """

    def __init__(self, scale: float, segments: tuple[int, ...], window: int) -> None:
        super().__init__(scale)
        self.segments = segments
        self.window = window
        self._within: set[tuple[int, int]] = set()  # number and length of sequences
        self._over: set[tuple[int, int]] = set()  # numbers of queries and keys

    @property
    def num_plans(self) -> int:
        """Shapes that were prepared."""
        return len(self._within) + len(self._over)

    def prepare(
        self,
        heads: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        past: tuple[torch.Tensor, torch.Tensor],
        equal: Sequence[tuple[int, int]],
    ) -> None:
        """Make the plans, on the thread that will use them: cuDNN has own ones for each.

        Args:
            heads: queries, keys, values as ``within`` gets them, as many rows as there can be.
            past: keys and values as ``over`` gets them, as many as there can be.
            equal: (number of sequences, length) of calls of ``within``.

        Raises:
            RuntimeError: cuDNN cannot do it.
            InternalError: its results are not those of the flash kernel.
        """
        for number, length in equal:
            rows = [x[: number * length] for x in heads]
            ends = torch.arange(number + 1, device=rows[0].device, dtype=torch.int32) * length
            lengths = [length] * number
            self._within.add((number, length))
            found = self.within(rows[0], rows[1], rows[2], ends, lengths)
            if (number, length) == equal[0]:
                wanted = super().within(rows[0], rows[1], rows[2], ends, lengths)
                _compare(found, wanted, length)
        for num_keys in self.segments:
            keys, values = (x[:, :num_keys] for x in past)
            for num_rows in range(self.window, len(heads[0]) + 1, self.window):
                query = heads[0][:num_rows]
                self._over.add((num_rows, num_keys))
                found = self.over(query, keys, values)
                if num_rows == self.window:
                    _compare(found, super().over(query, keys, values), num_rows)

    def within(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        offsets: torch.Tensor,
        lengths: Sequence[int],
    ) -> Attended:
        """See ``AttentionCalls``."""
        number, length = len(lengths), lengths[0]
        is_planned = (number, length) in self._within
        if not is_planned or any(other != length for other in lengths):
            return super().within(query, keys, values, offsets, lengths)
        q, k, v = (
            x.view(number, length, *x.shape[1:]).transpose(1, 2) for x in (query, keys, values)
        )
        return _call_cudnn(q, k, v, self.scale, is_causal=True)

    def over(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Attended:
        """See ``AttentionCalls``."""
        if (len(query), keys.shape[1]) not in self._over:
            return super().over(query, keys, values)
        wide = query[None].transpose(1, 2)
        return _call_cudnn(wide, keys[None], values[None], self.scale, is_causal=False)


def try_cudnn(
    heads: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    past: tuple[torch.Tensor, torch.Tensor],
    equal: Sequence[tuple[int, int]],
    segments: tuple[int, ...],
    window: int,
    *,
    scale: float,
) -> FlashCalls:
    """The quickest calls that work here; the choice is logged. See ``CudnnCalls.prepare``."""
    started_s = time.monotonic()
    calls = CudnnCalls(scale, segments, window)
    try:
        calls.prepare(heads, past, equal)
    except (RuntimeError, InternalError) as error:
        logger.warning("attention of prompts: by the flash kernel; not by cuDNN's: %s", error)
        return FlashCalls(scale)
    took_s = time.monotonic() - started_s
    logger.info(
        "attention of prompts: by cuDNN for %d shapes, prepared in %.2f s, else by flash kernel",
        calls.num_plans,
        took_s,
    )
    return calls


def _call_cudnn(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    *,
    is_causal: bool,
) -> Attended:
    """[b, heads, s, d] each; the causal mask's corner is at the first query and the first key.

    Sums are always asked for: with and without them would be two plans.
    """
    forward = torch.ops.aten._scaled_dot_product_cudnn_attention.default
    results = forward(query, keys, values, None, True, 0.0, is_causal, False, scale=scale)
    return Attended(results[0].transpose(1, 2).flatten(0, 1), results[1])


def _attend_plainly(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    *,
    is_causal: bool,
) -> Attended:
    """Query [n, heads, d] over keys and values [kv_heads, m, d]."""
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads, num_keys, _ = keys.shape
    grouped = query.float().transpose(0, 1).reshape(num_kv_heads, -1, head_dim)
    scores = torch.matmul(grouped, keys.float().transpose(1, 2)) * scale
    scores = scores.view(num_heads, num_rows, num_keys)
    if is_causal:
        seen = torch.ones(num_rows, num_keys, dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    weights = scores.softmax(-1).view(num_kv_heads, -1, num_keys)
    out = torch.matmul(weights, values.float()).view(num_heads, num_rows, head_dim)
    return Attended(out.transpose(0, 1).to(query.dtype).contiguous(), scores.logsumexp(-1))


def _compare(found: Attended, wanted: Attended, num_rows: int) -> None:
    rows = slice(0, num_rows)
    pairs = {
        "results": (found.out[rows], wanted.out[rows]),
        "sums": (found.sums_of(0, rows), wanted.sums_of(0, rows)),
    }
    for name, (one, other) in pairs.items():
        difference = float((one.float() - other.float()).norm() / other.float().norm())
        if not difference < _MAX_DIFFERENCE:
            raise InternalError(
                f"{name} of cuDNN's attention are not those of the flash kernel",
                value=f"{difference:.3g}",
                limit=f"{_MAX_DIFFERENCE:.3g}",
            )
