"""The invariants of a chaos run, checked on its history after everything has come to rest.

==  =======================================================================
I1  each accepted request ends exactly once
I2  its tokens come at positions 0 … n-1: no gap, no repeat
I3  its text is the golden one; of a request that an allowed error ended, the beginning of it
I4  the usage that the server states is what the client saw
I5  no other request's text appears in it
I6  slots, blocks, segments, descriptors, threads and zombies are back where they were
I7  the server counts as its clients do
I8  no request outlives its deadline by more than a second
==  =======================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from hybridgen.ipc.segment import SHM_DIR
from hybridgen.launch.chaos.history import Golden, History, Holdings, Record

#: A request may be told of its deadline so much later.
MAX_LATE_S = 1.0
#: A run of tokens (or characters) as long as this is no coincidence.
NUM_TELLING_IDS = 4
NUM_TELLING_CHARS = 12
#: What half a character is shown as.
REPLACEMENT = "\ufffd"
#: A replacement may hold a few descriptors more: connections that its peers made anew.
MAX_MORE_FDS = 4


class Violation(msgspec.Struct, frozen=True):
    """Something that may not happen."""

    invariant: str
    what: str


def violations(history: History, allowed: frozenset[str] = frozenset()) -> list[Violation]:
    """Every violation in ``history``.

    Args:
        history: of a run that has come to rest.
        allowed: codes of errors with which requests may end.
    """
    found: list[Violation] = []
    for number, record in enumerate(history.records):
        for violation in _of_record(record, history, allowed):
            what = f"request {number} (question {record.question}): {violation.what}"
            found.append(Violation(violation.invariant, what))
    found += _of_holdings(history.before, history.after)
    found += _of_counts(history)
    return found


def _of_record(record: Record, history: History, allowed: frozenset[str]) -> Iterator[Violation]:
    golden = history.goldens[record.question]
    yield from _ends_once(record)
    yield from _is_in_time(record, history.ended_s)
    shift = _shift(record, golden)
    if shift:
        kind = f"{shift} tokens are missing" if shift > 0 else f"{-shift} tokens come twice"
        yield Violation("I2", kind)
    else:
        yield from _is_golden(record, golden, allowed)
        yield from _is_nobody_elses(record, history.goldens)
    yield from _usage_is_right(record, golden)


def _ends_once(record: Record) -> Iterator[Violation]:
    if record.is_accepted and len(record.outcomes) != 1:
        yield Violation("I1", f"it ended {len(record.outcomes)} times")
    if record.outcomes and record.pieces and record.pieces[-1].at_s > record.outcomes[0].at_s:
        yield Violation("I1", "text came after its end")


def _is_in_time(record: Record, ended_s: float) -> Iterator[Violation]:
    over_s = record.outcomes[0].at_s if record.outcomes else ended_s
    if over_s > record.deadline_s + MAX_LATE_S:
        yield Violation("I8", f"it outlived its deadline by {over_s - record.deadline_s:.2f} s")


def _shift(record: Record, golden: Golden) -> int:
    """How far the first tokens in the wrong place are from their place; 0: none are, or nowhere."""
    ids = record.ids
    at = _first_difference(ids, golden.ids)
    run = ids[at : at + NUM_TELLING_IDS]
    shifts = [place - at for place in _places(golden.ids, run)] if run else []
    return min(shifts, key=abs, default=0)


def _is_golden(record: Record, golden: Golden, allowed: frozenset[str]) -> Iterator[Violation]:
    outcome = record.outcomes[0] if record.outcomes else None
    text, ids = record.text, record.ids
    if outcome is None or outcome.error:
        begun = text.rstrip(REPLACEMENT)  # it may have ended within a character
        is_prefix = golden.text.startswith(begun) and golden.ids[: len(ids)] == ids
        if not is_prefix:
            yield Violation("I3", f"it does not begin as it should: {_difference(text, golden)}")
        if outcome is not None and outcome.error not in allowed:
            yield Violation("I3", f"it ended with {outcome.error} after {len(text)} characters")
    elif text != golden.text or (record.has_ids and ids != golden.ids):
        yield Violation("I3", f"it is not what it should be: {_difference(text, golden)}")
    elif outcome.finish_reason != golden.finish_reason:
        reasons = f"{outcome.finish_reason}, not {golden.finish_reason}"
        yield Violation("I3", f"it ended by {reasons}")


def _difference(text: str, golden: Golden) -> str:
    at = _first_difference(text, golden.text)
    return f"at character {at} {text[at : at + 20]!r} for {golden.text[at : at + 20]!r}"


def _first_difference(one: Sequence[object], other: Sequence[object]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _is_nobody_elses(record: Record, goldens: list[Golden]) -> Iterator[Violation]:
    own = goldens[record.question]
    text, ids = record.text, record.ids
    at = _first_difference(text, own.text)
    strange = text[at : at + NUM_TELLING_CHARS]
    at = _first_difference(ids, own.ids)
    strange_ids = ids[at : at + NUM_TELLING_IDS]
    for number, other in enumerate(goldens):
        if number == record.question or other.text == own.text:
            continue
        is_text = len(strange) == NUM_TELLING_CHARS and strange in other.text
        if is_text or (len(strange_ids) == NUM_TELLING_IDS and _places(other.ids, strange_ids)):
            yield Violation("I5", f"it holds text of question {number}")
            return


def _places(ids: list[int], run: list[int]) -> list[int]:
    """Where in ``ids`` the ``run`` stands."""
    return [at for at in range(len(ids) - len(run) + 1) if ids[at : at + len(run)] == run]


def _usage_is_right(record: Record, golden: Golden) -> Iterator[Violation]:
    for outcome in record.outcomes:
        if outcome.error:
            continue
        num_seen = len(record.ids) if record.has_ids else len(golden.ids)
        if outcome.num_tokens != num_seen:
            yield Violation("I4", f"{num_seen} tokens were seen, {outcome.num_tokens} stated")
        if outcome.num_prompt_tokens != golden.num_prompt_tokens:
            counts = f"{outcome.num_prompt_tokens} for {golden.num_prompt_tokens}"
            yield Violation("I4", f"prompt tokens stated: {counts}")


def _of_holdings(before: Holdings | None, after: Holdings | None) -> Iterator[Violation]:
    if before is None or after is None:
        return
    if after.num_free_slots != before.num_free_slots:
        yield _changed("free slots", before.num_free_slots, after.num_free_slots)
    if after.num_free_blocks != before.num_free_blocks:
        yield _changed("free blocks", before.num_free_blocks, after.num_free_blocks)
    if after.num_zombies:
        yield _changed("zombies", before.num_zombies, after.num_zombies)
    for name in set(after.shm_names) - set(before.shm_names):
        yield Violation("I6", f"{SHM_DIR}/{name} was left")
    for name, count in after.num_fds.items():
        was = before.num_fds.get(name, 0)
        if count > was + MAX_MORE_FDS:
            yield _changed(f"descriptors of {name}", was, count)
    for name, count in after.num_threads.items():
        was = before.num_threads.get(name, 0)
        if count > was:
            yield _changed(f"threads of {name}", was, count)


def _changed(what: str, before: int, after: int) -> Violation:
    return Violation("I6", f"{what}: {before} before, {after} after")


def client_counts(records: Sequence[Record]) -> dict[str, int]:
    """What the coscheduler should have counted, by the names on its board line."""
    seen: Counter[str] = Counter()
    for record in records:
        if not record.is_accepted:
            seen["rejected"] += 1
            continue
        seen["accepted"] += 1
        for outcome in record.outcomes:
            seen["finished"] += 1
            ending = "error" if outcome.error else outcome.finish_reason
            seen["cancelled" if ending == "cancelled" else f"ended_{ending}"] += 1
    names = ("accepted", "finished", "ended_stop", "ended_length", "ended_error", "rejected")
    return {name: seen[name] for name in (*names, "cancelled")}


def _of_counts(history: History) -> Iterator[Violation]:
    if history.counted is None:
        return
    for name, count in client_counts(history.records).items():
        counted = history.counted.get(name, 0)
        if counted != count:
            yield Violation("I7", f"{name}: clients saw {count}, the server counted {counted}")
