"""What happened in a chaos run, as its clients saw it. Data alone: recorded once, judged later.

All times are seconds of CLOCK_MONOTONIC, which every process of the machine shares.
"""

from __future__ import annotations

import msgspec

from hybridgen.request import SamplingParams


class Question(msgspec.Struct, frozen=True):
    """A request that can be asked again and again: its seed is fixed, so its answer is."""

    prompt: str
    params: SamplingParams


class Golden(msgspec.Struct, frozen=True):
    """The only right answer to a question."""

    ids: list[int]
    text: str
    finish_reason: str
    num_prompt_tokens: int


class Piece(msgspec.Struct, frozen=True, gc=False):
    """New text as it arrived. Over HTTP no ids come with it."""

    at_s: float
    text: str
    ids: list[int] = []


class Outcome(msgspec.Struct, frozen=True):
    """How a request ended for its client."""

    at_s: float
    finish_reason: str = ""
    num_tokens: int = 0
    """As the server counts them."""
    num_prompt_tokens: int = 0
    error: str = ""
    """Code of the error that ended it; empty when it ended well."""


class Record(msgspec.Struct):
    """One request from its submission to its end."""

    question: int
    begun_s: float
    deadline_s: float
    has_ids: bool = True
    is_accepted: bool = True
    pieces: list[Piece] = msgspec.field(default_factory=list)
    outcomes: list[Outcome] = msgspec.field(default_factory=list)

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def ids(self) -> list[int]:
        """All of its tokens."""
        return [token_id for piece in self.pieces for token_id in piece.ids]


class Blow(msgspec.Struct):
    """One process that was made to die or stop, and what its supervisor made of it."""

    at_s: float
    name: str
    how: str
    detected_s: float | None = None
    """When the supervisor said so."""
    noted_s: float | None = None
    """When the coscheduler had acted on it; its own death it cannot note."""
    whole_s: float | None = None
    """When its replacement was ready."""


class Holdings(msgspec.Struct, frozen=True):
    """What a tree holds at some moment of rest."""

    num_free_slots: int
    num_free_blocks: int
    num_fds: dict[str, int]
    """Descriptors by process."""
    num_threads: dict[str, int]
    num_zombies: int
    shm_names: list[str]
    """Entries of /dev/shm that are ours."""


class History(msgspec.Struct):
    """Everything that the checker looks at."""

    goldens: list[Golden]
    records: list[Record] = msgspec.field(default_factory=list)
    blows: list[Blow] = msgspec.field(default_factory=list)
    begun_s: float = 0.0
    ended_s: float = 0.0
    before: Holdings | None = None
    after: Holdings | None = None
    counted: dict[str, int] | None = None
    """What the server counted meanwhile; None when a counting process was replaced."""
