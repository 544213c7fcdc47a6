"""Do the coscheduler's orders fit the batch of the gpu process?"""

from __future__ import annotations

from hybridgen.errors import InternalError
from hybridgen.messages import GrantBlocks, JoinBatch


def check_join(
    order: JoinBatch, *, num_rows: int, max_rows: int, width: int, block_size: int
) -> None:
    """A row that joins.

    Args:
        order: the row.
        num_rows: rows that are there already.
        max_rows: rows in the batch at most.
        width: blocks of one row at most.
        block_size: tokens of a block.

    Raises:
        InternalError: its blocks hold none of its tokens, it is too long, or the batch is full.
    """
    has_room = order.num_cached < len(order.blocks) * block_size
    is_long = not 1 <= order.num_tokens <= width * block_size or len(order.blocks) > width
    if num_rows < max_rows and has_room and not is_long:
        return
    raise InternalError(
        "a row does not fit into the batch",
        value=f"{order.num_tokens} tokens in {len(order.blocks)} blocks",
        limit=f"{max_rows} rows of {width} blocks",
    )


def check_grant(order: GrantBlocks, *, num_blocks: int, width: int) -> None:
    """More blocks for a row that has ``num_blocks``.

    Raises:
        InternalError: a gap in the table, or more blocks than the context needs.
    """
    stop = order.first + len(order.blocks)
    if order.first > num_blocks or stop > width:
        raise InternalError(
            "granted blocks leave a gap in the block table, or exceed it",
            value=f"blocks {order.first} to {stop}",
            limit=f"{num_blocks} held, {width} at most",
        )
