"""Requests that kill: whoever is served in two deaths of one kind is ended, the others go on.

Most workers say whom they are working for (``Served``), so that a death names one request, which is
counted. A gpu process decodes many at once. There all rows are counted that have not moved on since
the last death, and when two deaths leave more than one of them, these are *suspects*: they join
again one by one, so that a third death names one.

Having moved on means two tokens: the first comes with the prefill after a restart, which a request
that kills in decoding survives.
"""

from __future__ import annotations

from hybridgen.clock import Clock
from hybridgen.errors import PoisonRequest
from hybridgen.scheduler.request_record import RequestRecord
from hybridgen.scheduler.slot_ledger import SlotLedger

POISON_DEATHS = 2
#: Tokens between two deaths that clear a request.
CLEARING_TOKENS = 2
#: Time between two deaths of detokenizers that clears a text.
CLEARING_S = 60.0
#: Stands for ``tokens_at_death`` where that died with a coscheduler: in doubt, it has moved on.
TOKENS_UNKNOWN = -CLEARING_TOKENS
#: Deaths in a slot's word, one byte each.
_KINDS = ("gpu", "sampler", "tokenizer", "detokenizer")
_MAX_DEATHS = 255


class Quarantine:
    """Counts deaths in the slot records, where they outlive a coscheduler."""

    def __init__(self, ledger: SlotLedger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock

    def named(self, kind: str, record: RequestRecord, num_deaths: int = 1) -> PoisonRequest | None:
        """A process of that kind died while it worked for ``record``, once or as often as said.

        Returns:
            The error to end it with, if it is to be ended.
        """
        if kind == "detokenizer":
            # Its replacement reads the whole text again, so one that kills does it soon. Tokens
            # clear nobody here: samplers go on while no detokenizer is there.
            now_s = self._clock()
            if now_s - record.text_death_s > CLEARING_S:
                self._set(record, kind, 0)
            record.text_death_s = now_s
        self._set(record, kind, deaths_of(record, kind) + num_deaths)
        return self._verdict(kind, record)

    def rows(self, records: list[RequestRecord]) -> list[tuple[RequestRecord, PoisonRequest]]:
        """The gpu process died with these rows; whom to end for it, with which error."""
        stuck = [record for record in records if self._row_is_stuck(record)]
        tried = [record for record in stuck if record.is_suspect]
        guilty = tried if len(tried) == 1 else stuck
        if len(stuck) > 1:
            for record in stuck:
                record.is_suspect = True
        if len(guilty) > 1:
            return []
        verdicts = [(record, self._verdict("gpu", record)) for record in guilty]
        return [(record, error) for record, error in verdicts if error is not None]

    def clear(self, record: RequestRecord) -> None:
        """A suspect that has shown that it does not kill is none any more."""
        if self._has_moved_on(record):
            record.is_suspect = False
            self._set(record, "gpu", 0)

    def _row_is_stuck(self, record: RequestRecord) -> bool:
        num_deaths = 0 if self._has_moved_on(record) else deaths_of(record, "gpu")
        self._set(record, "gpu", num_deaths + 1)
        record.tokens_at_death = self._ledger.num_generated(record)
        return num_deaths + 1 >= POISON_DEATHS

    def _has_moved_on(self, record: RequestRecord) -> bool:
        num_tokens = self._ledger.num_generated(record)
        return num_tokens >= record.tokens_at_death + CLEARING_TOKENS

    def _set(self, record: RequestRecord, kind: str, num_deaths: int) -> None:
        shift = 8 * _KINDS.index(kind)
        others = record.deaths & ~(_MAX_DEATHS << shift)
        self._ledger.set_deaths(record, others | min(num_deaths, _MAX_DEATHS) << shift)

    def _verdict(self, kind: str, record: RequestRecord) -> PoisonRequest | None:
        num_deaths = deaths_of(record, kind)
        return poison(kind, num_deaths) if num_deaths >= POISON_DEATHS else None


def poison(kind: str, num_deaths: int) -> PoisonRequest:
    """What its client is told."""
    return PoisonRequest(
        f"the {kind} died repeatedly while it served this request",
        value=num_deaths,
        limit=POISON_DEATHS,
        remedy="Change the prompt or the parameters; please report it with the log",
    )


def deaths_of(record: RequestRecord, kind: str) -> int:
    """Deaths of one kind."""
    return record.deaths >> 8 * _KINDS.index(kind) & _MAX_DEATHS
