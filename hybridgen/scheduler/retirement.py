"""The one way out: however a request ends, it ends here.

::

    end()          from outside: cancelled, client gone, deadline, error, drain
    row_finished() its own tokens ended it, says the gpu process      ┐
    text_finished() … and all its text is out, says the detokenizer   ┘ either may come first
        └→ conclude()   final message, one log line, counters          exactly once
              └→ release()   slot free, when nobody can touch it any more

A request that is ended from outside gets its final message when its text is flushed, at once when
there is none, and CLOSE_GRACE_S later in any case: a dead detokenizer must not hold up a deadline.
"""

from __future__ import annotations

from hybridgen.clock import Clock
from hybridgen.config import SchedulerSection
from hybridgen.errors import (
    Cancelled,
    DeadlineExceeded,
    HybridGenError,
    InternalError,
)
from hybridgen.ipc.slot_table import RowError, SlotState
from hybridgen.messages import RequestFinished, TextFinished
from hybridgen.request import FinishReason
from hybridgen.scheduler.alarms import Alarms
from hybridgen.scheduler.counters import Counters
from hybridgen.scheduler.encoding import Encoding
from hybridgen.scheduler.finish_rate import FinishRate
from hybridgen.scheduler.gpu_batch import GpuBatch
from hybridgen.scheduler.outbox import Outbox
from hybridgen.scheduler.queues import RequestQueue
from hybridgen.scheduler.request_book import RequestBook
from hybridgen.scheduler.request_record import (
    NATURAL_ENDS,
    Ending,
    FinishedRequest,
    RequestRecord,
)
from hybridgen.scheduler.request_times import RequestTimes
from hybridgen.scheduler.slot_ledger import SlotLedger
from hybridgen.scheduler.texts import Texts

CLOSE_GRACE_S = 0.5
#: A final message without an acknowledgement for so long is said again.
REPEAT_S = 1.0


class Retirement:
    """Frees row, blocks and slot; sends the final message; counts and logs."""

    def __init__(
        self,
        *,
        limits: SchedulerSection,
        clock: Clock,
        book: RequestBook,
        ledger: SlotLedger,
        batch: GpuBatch,
        backlog: RequestQueue[RequestRecord],
        encoding: Encoding,
        texts: Texts,
        outbox: Outbox,
        counters: Counters,
        finish_rate: FinishRate,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._book = book
        self._ledger = ledger
        self._batch = batch
        self._backlog = backlog
        self._encoding = encoding
        self._texts = texts
        self._outbox = outbox
        self._counters = counters
        self._finish_rate = finish_rate
        self.alarms: Alarms[RequestRecord] = Alarms()
        self.finished: list[FinishedRequest] = []
        self.num_over = 0  # of those in the book

    def end(self, record: RequestRecord, error: HybridGenError) -> None:
        """End ``record`` from outside, in whatever phase it is."""
        self.cut(record, Ending.of(error))

    def cut(self, record: RequestRecord, ending: Ending) -> None:
        """As ``end``, with an error that came from another process."""
        if record.final is not None or record.is_cut:
            return
        self._decide(record, ending)
        record.is_cut = True
        record.ended_s = self._clock()
        if not record.has_slot:
            self._backlog.remove(record)
            self._conclude(record)
            self.release(record)
            return
        self._ledger.set_end(record, ending)
        self._withdraw(record)
        self._texts.close(record)
        has_text = record.is_row or self._ledger.num_generated(record) > 0
        if record.text is not None or not has_text:
            self._conclude(record)
        self.watch(record)
        self.release(record)

    def drop_reader(self, record: RequestRecord, ending: Ending) -> None:
        """Nobody reads the text and nobody will confirm it."""
        record.is_acked = True
        self.drop_text(record, ending)

    def drop_text(self, record: RequestRecord, ending: Ending) -> None:
        """Nobody will say that the text is out."""
        self.cut(record, ending)
        if record.final is None:
            self._conclude(record)
        self.watch(record)
        self.release(record)

    def row_finished(self, record: RequestRecord) -> None:
        """The sampler ended it; the gpu process has taken the row off."""
        if not record.is_over:
            ending = self.sampler_ending(record)
            if ending.error is not None and ending.error.code == InternalError.code:
                self.cut(record, ending)  # the detokenizer has no finish word to see it by
            else:
                self._decide(record, ending)
        if record.text is not None and record.final is None:
            self._conclude(record)
        if record.is_canary:
            self._texts.close(record)  # nobody subscribes
        self.release(record)

    def text_finished(self, record: RequestRecord, fact: TextFinished) -> None:
        """All text is with the client's socket."""
        if record.text is not None:
            return
        record.text = fact
        reason = FinishReason(fact.finish_reason)
        if not record.is_over:
            is_natural = reason in NATURAL_ENDS
            ending = Ending(reason) if is_natural else self._text_ending(record, fact)
            self._decide(record, ending)
            if not is_natural:
                self._ledger.set_end(record, ending)
            self._withdraw(record)
        if record.final is None:
            self._conclude(record)
        self.release(record)

    def sampler_ending(self, record: RequestRecord) -> Ending:
        """What the finish word says."""
        finish = self._ledger.finish(record)
        if finish.reason in NATURAL_ENDS:
            return Ending(finish.reason)
        if finish.row_error is not RowError.OK:
            return Ending.of(finish.row_error.exception())
        if self._ledger.has_stop(record):
            return Ending(FinishReason.STOP_STRING)
        return Ending.of(
            InternalError("a row was finished without a reason", value=finish.reason.name)
        )

    def acknowledge(self, record: RequestRecord) -> None:
        """The client has everything. Before the final message an ack means nothing."""
        if record.final is not None:
            record.is_acked = True
            self.release(record)

    def release(self, record: RequestRecord) -> None:
        """Free the slot once no worker can touch it and the client is content or had its time."""
        is_held = record.is_row or record.num_encodes > 0
        if record.final is None or is_held or record.is_released:
            return
        if record.has_slot:
            is_text_closed = record.text is not None or not record.is_text_open
            is_content = record.is_acked and is_text_closed
            if not is_content and self._clock() < record.final_s + self._limits.ack_timeout_s:
                return
            self._encoding.withdraw(record)
            self._texts.forget(record)
            self._ledger.free(record)
        record.is_released = True
        self.num_over -= 1
        self.alarms.clear(record)
        self._book.remove(record)

    def repeat_finals(self) -> None:
        """Say again what was not acknowledged: either message may have been lost on the way."""
        due_s = self._clock() - REPEAT_S
        for record in self._book:
            if record.final is not None and not record.is_acked and record.final_s <= due_s:
                self._outbox.to_client(record.client_id, record.final)

    def watch(self, record: RequestRecord) -> None:
        """Set the alarm for what would have to be done next."""
        if record.is_released:
            return
        if record.final is not None:
            when_s = record.final_s + self._limits.ack_timeout_s
        elif record.is_cut:
            when_s = record.ended_s + CLOSE_GRACE_S
        else:
            when_s = min(record.deadline_s, record.prompt_wait_s)
        if when_s < float("inf"):
            self.alarms.set(record, when_s)

    def ring_alarms(self) -> None:
        """Do what is due."""
        now_s = self._clock()
        for record in self.alarms.pop_due(now_s):
            if record.final is not None:
                self.release(record)
            elif record.is_cut:
                self._conclude(record)
            elif now_s >= record.deadline_s:
                self.end(record, self._deadline_error(record))
            elif now_s >= record.prompt_wait_s:
                lost = Cancelled(
                    "the prompt was lost in a restart and the client did not repeat it",
                    limit=self._limits.ack_timeout_s,
                    remedy="Submit the request again",
                )
                self.drop_reader(record, Ending.of(lost))
            else:
                self.watch(record)

    def take_finished(self) -> list[FinishedRequest]:
        """One entry per request that ended since the last call, for the log."""
        finished, self.finished = self.finished, []
        return finished

    # --- inside -------------------------------------------------------------------------------

    def _decide(self, record: RequestRecord, ending: Ending) -> None:
        if record.ending is None:
            self.num_over += 1
        record.ending = ending
        if record.has_slot:
            self._ledger.set_state(record, SlotState.FINISHED)

    def _withdraw(self, record: RequestRecord) -> None:
        self._batch.withdraw(record)
        self._encoding.withdraw(record)

    def _text_ending(self, record: RequestRecord, fact: TextFinished) -> Ending:
        if fact.error is not None:
            return Ending(FinishReason(fact.finish_reason), fact.error)
        return self.sampler_ending(record)

    def _deadline_error(self, record: RequestRecord) -> DeadlineExceeded:
        return DeadlineExceeded(
            "the request's deadline passed",
            limit=round(record.deadline_s - record.arrival_s, 3),
            remedy="Give a longer timeout_s, or ask for fewer tokens",
            phase=record.state.name.lower() if record.has_slot else "queued",
        )

    def _conclude(self, record: RequestRecord) -> None:
        ending, text = record.ending, record.text
        if ending is None:
            raise InternalError("a request is concluded before its end is decided")
        if text is not None and FinishReason(text.finish_reason) in NATURAL_ENDS:
            ending = Ending(FinishReason(text.finish_reason))  # it had its answer before the cut
        elif text is not None and text.error is not None and not record.is_cut:
            ending = Ending(FinishReason(text.finish_reason), text.error)
        record.final = RequestFinished(
            request_id=record.request_id,
            finish_reason=ending.reason.public_name or "",
            num_prompt_tokens=record.prompt_len,
            num_cached_tokens=record.num_cached,
            num_tokens=0 if text is None else text.num_tokens,
            num_chars=0 if text is None else text.num_chars,
            error=ending.error,
        )
        record.final_s = self._clock()
        self._outbox.to_client(record.client_id, record.final)
        self.watch(record)
        if record.is_canary:
            return
        self._counters.ended(ending)
        self._finish_rate.count()
        self.finished.append(_log_entry(record, record.final, ending))


def _log_entry(record: RequestRecord, final: RequestFinished, ending: Ending) -> FinishedRequest:
    return FinishedRequest(
        request_id=record.request_id,
        slot=record.slot,
        finish_reason=final.finish_reason,
        error_code="" if ending.error is None else ending.error.code,
        num_prompt_tokens=final.num_prompt_tokens,
        num_tokens=final.num_tokens,
        queue_s=record.joined_s - record.arrival_s,
        total_s=record.final_s - record.arrival_s,
        num_preemptions=record.num_preemptions,
        deaths=record.num_deaths,
        times=RequestTimes(
            arrival_s=record.arrival_s,
            seated_s=record.seated_s,
            encoded_s=record.encoded_s,
            joined_s=record.joined_s,
            prefilled_s=record.prefilled_s,
            final_s=record.final_s,
        ),
        trace=record.trace,
    )
