"""Device memory that kernels of one stream share for partial results."""

from __future__ import annotations

import torch

from hybridgen.errors import InternalError


class Workspace:
    """Partial results and arrival counters.

    One workspace serves one stream: kernels of it never overlap there. Sized once, before
    graphs are captured; its memory never moves.

    Args:
        device: where it lies.
        num_floats: float32 partial results.
        num_counters: tiles or heads whose programs count their arrival.
        dtype, num_elements: scratch rows in the dtype of the activations (a norm's result,
            or products of cuBLAS that have yet to pass the gate).
        num_products: elements in the same dtype of products that have yet to pass a norm.
    """

    def __init__(
        self,
        device: torch.device | str,
        *,
        num_floats: int,
        num_counters: int,
        dtype: torch.dtype = torch.bfloat16,
        num_elements: int = 0,
        num_products: int = 0,
    ) -> None:
        self.partials = torch.empty(num_floats, dtype=torch.float32, device=device)
        # Zero between kernels: the program that arrives last puts its counter back.
        self.counters = torch.zeros(num_counters, dtype=torch.int32, device=device)
        self.scratch = torch.empty(num_elements, dtype=dtype, device=device)
        self.products = torch.empty(num_products, dtype=dtype, device=device)

    def require(self, *, num_floats: int = 0, num_counters: int = 0) -> None:
        """Check that a kernel's partial results fit.

        Raises:
            InternalError: they do not.
        """
        if num_floats > len(self.partials) or num_counters > len(self.counters):
            raise InternalError(
                "a kernel's partial results do not fit the workspace",
                value=f"{num_floats} floats, {num_counters} counters",
                limit=f"{len(self.partials)} floats, {len(self.counters)} counters",
            )

    def rows(self, num_rows: int, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Scratch as [num_rows, size].

        Raises:
            InternalError: it is too small or of another dtype.
        """
        return _as_rows(self.scratch, num_rows, size, dtype)

    def product_rows(self, num_rows: int, size: int, dtype: torch.dtype) -> torch.Tensor:
        """[num_rows, size] beside the scratch, for a product that takes scratch itself.

        Raises:
            InternalError: there is not so much.
        """
        return _as_rows(self.products, num_rows, size, dtype)


def _as_rows(space: torch.Tensor, num_rows: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    if num_rows * size > len(space) or dtype != space.dtype:
        raise InternalError(
            "scratch rows do not fit the workspace",
            value=f"{num_rows} x {size} {dtype}",
            limit=f"{len(space)} {space.dtype}",
        )
    return space[: num_rows * size].view(num_rows, size)
