"""Writes records of every kind as fast as it can, until it is killed.

Started as ``python -S -E record_writer.py <import path> <fd>…``; waits for a byte on standard
input, so that the test can have spare writers ready. With ``each`` before the descriptors it reads
numbers instead, one a line: for each it forks a writer that is killed at that passage of the fault
point ``ring.commit``, and says how that one ended.
"""

from __future__ import annotations

import logging
import os
import sys

sys.path[:0] = sys.argv[1].split(":")

from hybridgen import fault  # noqa: E402  # needs the path
from hybridgen.ipc.header import SegmentKind  # noqa: E402
from hybridgen.ipc.logit_ring import LogitRing  # noqa: E402
from hybridgen.ipc.sampled_ring import SampledRing  # noqa: E402
from hybridgen.ipc.slot_table import SlotTable, SlotWord  # noqa: E402
from hybridgen.ipc.token_store import TokenStore  # noqa: E402
from tests.support.mapped import map_inherited  # noqa: E402
from tests.support.record_patterns import (  # noqa: E402
    MAX_LEN,
    MAX_ROWS,
    NUM_SLOTS,
    fill_slot,
    token_at,
    write_step,
)


def answer(asked: LogitRing, sampled: SampledRing) -> None:
    """As a sampler: answer the newest asked step, once."""
    step = asked.latest
    if step == 0 or sampled.done(step, 0) == step:
        return
    for row in range(MAX_ROWS):
        sampled.write_result(step, row, token_at(step * MAX_ROWS + row) - 2**30, row)
    sampled.mark_done(step, 0)


def append_token(table: SlotTable, tokens: TokenStore) -> None:
    """As a sampler: choose the next token of slot 0, the count last."""
    generated = table.load(0, SlotWord.GENERATED)
    tokens.write(0, generated % MAX_LEN, [token_at(generated)])
    table.store(0, SlotWord.GENERATED, generated + 1)


def write(fds: list[int]) -> None:
    """Write for ever."""
    logits = LogitRing(map_inherited(fds[0], SegmentKind.LOGITS))
    asked = LogitRing(map_inherited(fds[1], SegmentKind.LOGITS))
    sampled = SampledRing(map_inherited(fds[2], SegmentKind.SAMPLED))
    table = SlotTable(map_inherited(fds[3], SegmentKind.SLOTS))
    tokens = TokenStore(map_inherited(fds[4], SegmentKind.TOKENS))
    step = logits.latest + 1
    epoch = 1 + max(table.load(slot, SlotWord.EPOCH) for slot in range(NUM_SLOTS))
    while True:
        write_step(logits, step)
        fill_slot(table, epoch % NUM_SLOTS, epoch)
        append_token(table, tokens)
        answer(asked, sampled)
        step += 1
        epoch += 1


def die_on_order(fds: list[int]) -> None:
    """One writer for each line of standard input."""
    logging.disable()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            faults = {fault.FAULT_ENV: f"ring.commit:kill@{line.strip()}"}
            fault.arm(faults, "sampler-0", incarnation=1)
            write(fds)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def main(arguments: list[str]) -> None:
    if arguments[0] == "each":
        die_on_order([int(text) for text in arguments[1:]])
        return
    sys.stdin.buffer.read(1)
    write([int(text) for text in arguments])


main(sys.argv[2:])
