"""The coscheduler's words of the slot table: filled, changed, freed, and read back.

Order of stores: everything of a new occupant before ``state``; on freeing, ``state`` first. A
coscheduler that dies in between leaves either a whole record or a free slot. The epoch of a slot
only ever grows, also over restarts, because it stays in the record of a free slot.
"""

from __future__ import annotations

import collections
import logging
import math

import msgspec

from hybridgen import fault
from hybridgen.errors import HybridGenError, InternalError
from hybridgen.ipc.slot_table import Finish, SlotState, SlotTable, SlotWord, unpack_finish
from hybridgen.request import FinishReason
from hybridgen.sampling import parameters
from hybridgen.scheduler.request_record import NATURAL_ENDS, Ending, RequestRecord
from hybridgen.scheduler.tree_shape import TreeShape

logger = logging.getLogger(__name__)

_NS = 1_000_000_000
_SIGN = 1 << 63
_WORD = 1 << 64
_NO_END, _NO_DEATHS = (0, 0), 0


def _to_word(number: int) -> int:
    return number % _WORD


def _from_word(word: int) -> int:
    return word - _WORD if word >= _SIGN else word


def _deadline_ns(deadline_s: float) -> int:
    return int(deadline_s * _NS) if math.isfinite(deadline_s) else 0


class SlotLedger:
    """Gives out slots, the one freed longest ago first."""

    def __init__(self, table: SlotTable, shape: TreeShape) -> None:
        self.table = table
        self.num_slots = table.num_slots
        self._shape = shape
        self._free = collections.deque(range(table.num_slots))

    @property
    def num_free(self) -> int:
        """Slots without an occupant."""
        return len(self._free)

    def fill(self, record: RequestRecord) -> None:
        """Give ``record`` a free slot, in state ENCODING; the caller checked that there is one."""
        slot = self._free.popleft()
        store = self.table.store
        record.slot = slot
        record.epoch = self.table.load(slot, SlotWord.EPOCH) + 1
        record.state = SlotState.ENCODING
        store(slot, SlotWord.EPOCH, record.epoch)
        fault.point("slot.commit")
        self.table.clear_worker_lines(slot)
        self.table.set_ids(slot, record.client_id, record.request_id)
        parameters.pack(
            record.params,
            self._shape.eos_ids,
            record.seed,
            into=self.table.parameters(slot),
            grammar_into=self.table.grammar(slot),
        )
        # While the prompt length is unknown, its word for max_len keeps max_tokens for a restart.
        lengths = (0, record.params.max_tokens or 0)
        owners = (record.detokenizer, record.tokenizer)
        self.table.write_words(slot, SlotWord.PROMPT_LEN, *lengths, *_NO_END, *owners)
        self.table.write_words(
            slot,
            SlotWord.ARRIVAL_NS,
            *(int(record.arrival_s * _NS), _deadline_ns(record.deadline_s)),
            *(_to_word(record.priority), _NO_DEATHS),
        )
        fault.point("slot.commit")
        store(slot, SlotWord.STATE, SlotState.ENCODING)

    def set_state(self, record: RequestRecord, state: SlotState) -> None:
        """Move ``record`` to ``state``."""
        record.state = state
        self.table.store(record.slot, SlotWord.STATE, state)

    def set_lengths(self, record: RequestRecord, prompt_len: int, max_len: int) -> None:
        """Write what is known once the prompt is encoded."""
        record.prompt_len = prompt_len
        record.max_len = max_len
        self.table.store(record.slot, SlotWord.PROMPT_LEN, prompt_len)
        fault.point("slot.commit")
        self.table.store(record.slot, SlotWord.MAX_LEN, max_len)

    def set_owners(self, record: RequestRecord) -> None:
        """Write the indices of its tokenizer and detokenizer."""
        self.table.store(record.slot, SlotWord.TOKENIZER, record.tokenizer)
        self.table.store(record.slot, SlotWord.DETOKENIZER, record.detokenizer)

    def set_deaths(self, record: RequestRecord, deaths: int) -> None:
        """Write how many deaths it was served in."""
        record.deaths = deaths
        self.table.store(record.slot, SlotWord.DEATHS, deaths)

    def set_end(self, record: RequestRecord, ending: Ending) -> None:
        """Tell sampler and detokenizer that the request ends from outside."""
        self.table.store(record.slot, SlotWord.END_ERROR, ending.end_error)
        fault.point("slot.commit")
        self.table.store(record.slot, SlotWord.END_REASON, ending.reason)

    def num_generated(self, record: RequestRecord) -> int:
        """Tokens that samplers have published."""
        return self.table.load(record.slot, SlotWord.GENERATED)

    def finish(self, record: RequestRecord) -> Finish:
        """How the sampler ended it; reason NONE while it did not."""
        return unpack_finish(self.table.load(record.slot, SlotWord.FINISH))

    def has_stop(self, record: RequestRecord) -> bool:
        """Whether the detokenizer found a stop string."""
        return self.table.load(record.slot, SlotWord.STOP) != 0

    def free(self, record: RequestRecord) -> None:
        """Give the slot back."""
        self.set_state(record, SlotState.FREE)
        self._free.append(record.slot)

    def read_back(self) -> list[RequestRecord]:
        """Rebuild a record for every occupied slot, oldest arrival first; the rest are free."""
        self._free.clear()
        records = []
        for slot in range(self.num_slots):
            if self.table.load(slot, SlotWord.STATE) == SlotState.FREE:
                self._free.append(slot)
                continue
            try:
                records.append(self._read_back(slot))
            except (HybridGenError, ValueError) as error:  # a word that nobody can have written
                logger.warning("slot %d is given up, it cannot be read back: %s", slot, error)
                self.table.store(slot, SlotWord.STATE, SlotState.FREE)
                self._free.append(slot)
        records.sort(key=lambda record: record.arrival_s)
        for arrival, record in enumerate(records):
            record.arrival = arrival
        return records

    def _read_back(self, slot: int) -> RequestRecord:
        def load(word: SlotWord) -> int:
            return self.table.load(slot, word)

        params, _, seed = parameters.unpack(self.table.parameters(slot), self.table.grammar(slot))
        prompt_len, max_len = load(SlotWord.PROMPT_LEN), load(SlotWord.MAX_LEN)
        self._check_word("prompt_len", prompt_len, self.table.max_model_len + 1)
        self._check_word("max_len", max_len, self.table.max_model_len + 1)
        self._check_word("tokenizer", load(SlotWord.TOKENIZER), self._shape.num_tokenizers)
        self._check_word("detokenizer", load(SlotWord.DETOKENIZER), self._shape.num_detokenizers)
        # A length that is the whole context was most likely nobody's wish: it may be cut.
        max_tokens = 0 if max_len == self.table.max_model_len else max_len - prompt_len
        params = msgspec.structs.replace(params, max_tokens=max_tokens or None)
        deadline_ns = load(SlotWord.DEADLINE_NS)
        record = RequestRecord(
            client_id=self.table.client_id(slot),
            request_id=self.table.request_id(slot),
            params=params,
            seed=seed,
            priority=_from_word(load(SlotWord.PRIORITY)),
            arrival=0,
            arrival_s=load(SlotWord.ARRIVAL_NS) / _NS,
            deadline_s=deadline_ns / _NS if deadline_ns else math.inf,
            slot=slot,
            epoch=load(SlotWord.EPOCH),
            state=SlotState(load(SlotWord.STATE)),
            tokenizer=load(SlotWord.TOKENIZER),
            detokenizer=load(SlotWord.DETOKENIZER),
            prompt_len=prompt_len,
            max_len=max_len,
            deaths=load(SlotWord.DEATHS),
        )
        self._read_back_end(record)
        return record

    @staticmethod
    def _check_word(name: str, value: int, limit: int) -> None:
        if value >= limit:
            raise InternalError(f"the slot's word {name} is damaged", value=value, limit=limit - 1)

    def _read_back_end(self, record: RequestRecord) -> None:
        reason = FinishReason(self.table.load(record.slot, SlotWord.END_REASON))
        finish = self.finish(record)
        if finish.reason in NATURAL_ENDS:
            record.ending = Ending(finish.reason)
        elif reason is not FinishReason.NONE:
            end_error = self.table.load(record.slot, SlotWord.END_ERROR)
            record.ending = Ending.restored(reason, end_error)
            record.is_cut = True
