"""A whole history to break in one place."""

from __future__ import annotations

from hybridgen.launch.chaos.history import Golden, History, Holdings, Outcome, Piece, Record

REST = Holdings(
    num_free_slots=64,
    num_free_blocks=1000,
    num_fds={"gpu-0": 20},
    num_threads={"gpu-0": 3},
    num_zombies=0,
    shm_names=[],
)


def golden(number: int) -> Golden:
    """Answers without a token or a word in common."""
    ids = [number * 100 + at for at in range(20 + number)]
    text = "".join(f"<{token_id}>" for token_id in ids)
    return Golden(ids, text, "length" if number % 2 else "stop", 7 + number)


def record(number: int, begun_s: float = 10.0, sizes: tuple[int, ...] = (1, 3, 2)) -> Record:
    """A request that went well: its golden answer in pieces, one each 10 ms."""
    right = golden(number)
    at_s, first = begun_s, 0
    pieces = []
    while first < len(right.ids):
        ids = right.ids[first : first + sizes[len(pieces) % len(sizes)]]
        first += len(ids)
        at_s += 0.01
        pieces.append(Piece(at_s, "".join(f"<{token_id}>" for token_id in ids), ids))
    outcome = Outcome(at_s + 0.001, right.finish_reason, len(right.ids), right.num_prompt_tokens)
    return Record(number, begun_s, begun_s + 60, pieces=pieces, outcomes=[outcome])


def whole_history(num_records: int = 4) -> History:
    """Nothing is wrong with it."""
    records = [record(number) for number in range(num_records)]
    counted = {
        "accepted": num_records,
        "finished": num_records,
        "ended_length": num_records // 2,
        "ended_stop": num_records - num_records // 2,
    }
    return History(
        [golden(number) for number in range(num_records)],
        records,
        begun_s=9.0,
        ended_s=12.0,
        before=REST,
        after=REST,
        counted=counted,
    )
