"""One request's way from generated ids to the text its client has been sent.

A ``Delivery`` is rebuilt from shared memory alone: a replacement detokenizer opens the slot, reads
all ids from position 0 and arrives at the same text, and the client's own offsets say what of it
to send. Only what the socket took advances the cursors, so nothing is dropped for a slow reader.
"""

from __future__ import annotations

from collections.abc import Callable

from hybridgen.errors import HybridGenError, InternalError
from hybridgen.ipc.logprob_ring import LogprobRing
from hybridgen.ipc.slot_table import Finish, SlotTable, SlotWord, unpack_finish
from hybridgen.ipc.token_store import TokenStore, check_ids
from hybridgen.messages import ErrorInfo, TextDelta, TextFinished
from hybridgen.request import FinishReason, TokenLogprob
from hybridgen.sampling.parameters import unpack
from hybridgen.text.reasoning import OPEN_TAIL_TOKENS, left_open
from hybridgen.text.text_stream import Released, TextStream
from hybridgen.text.vocabulary import Vocabulary, kept_marks

#: A character has at most 4 bytes, so the prompt's last 4 tokens tell whether one is unfinished.
PROMPT_TAIL_TOKENS = 4
#: Tokens taken without a sign of life: where a pattern stops the text, some 10 µs for each byte.
SLICE_TOKENS = 512


class SharedViews:
    """The segments a delivery reads, and the one word it writes (``stop``)."""

    def __init__(self, slots: SlotTable, tokens: TokenStore, logprobs: LogprobRing) -> None:
        self.slots = slots
        self.tokens = tokens
        self.logprobs = logprobs


class Delivery:
    """One open text.

    Args:
        slot, epoch: of the request. views: of shared memory. vocabulary: of the model.
        now_s: the present. beat: called while much is taken at once, as a replacement does.

    Attributes:
        is_subscribed: the client has told its offsets and is believed to be connected.
        is_closed: ended from outside; it flushes what it has.
        is_reported: ``TextFinished`` was sent; kept for a client that asks again.
        idle_since_s: since when released text waits for the client; the present while none does.
        arrival_s: when the request arrived. last_sent_s: when tokens were last sent from here.
    """

    def __init__(
        self,
        slot: int,
        epoch: int,
        views: SharedViews,
        vocabulary: Vocabulary,
        now_s: float,
        *,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self.slot, self.epoch = slot, epoch
        self.client_id = views.slots.client_id(slot)
        self.request_id = views.slots.request_id(slot)
        self.is_subscribed = False
        self.is_reported = False
        self.idle_since_s = now_s
        self.arrival_s = views.slots.load(slot, SlotWord.ARRIVAL_NS) / 1e9
        self.last_sent_s: float | None = None
        self._views = views
        self._vocabulary = vocabulary
        self._beat = beat
        self._params, _, _ = unpack(views.slots.parameters(slot))
        self._prompt_len = 0
        self._stream = self._open_stream()
        self._finish: Finish | None = None
        self.is_closed = False
        self._error: HybridGenError | None = None
        self._is_flushed = False
        self._text: list[str] = []  # every released piece: a reconnecting client may ask for any
        self._unsent: list[str] = []
        self._released_tokens = 0
        self._sent_tokens = 0
        self._sent_chars = 0

    def _open_stream(self) -> TextStream:
        """A stream from the first generated token on; the text continues the prompt's last ids.

        A pattern is not looked at before the prompt is encoded: until then it may be refused.
        """
        params, stop = self._params, self._prompt_len
        tail_ids = self._prompt_tail(PROMPT_TAIL_TOKENS)
        head = ""
        if params.keep_reasoning_marks:
            token_bytes = self._vocabulary.token_bytes
            head = left_open(b"".join(token_bytes[i] for i in self._prompt_tail(OPEN_TAIL_TOKENS)))
        return TextStream(
            self._vocabulary,
            [text.encode("utf-8", "surrogatepass") for text in params.stop],
            params.include_stop_str_in_output,
            params.skip_special_tokens,
            tail_ids,
            kept_marks=kept_marks(params.keep_tool_marks, params.keep_reasoning_marks),
            head=head,
            stop_regex=params.stop_regex if stop else None,
        )

    def _prompt_tail(self, num_tokens: int) -> list[int]:
        """The last ids of the prompt; none before it is encoded."""
        stop = self._prompt_len
        return self._views.tokens.read(self.slot, max(0, stop - num_tokens), stop)

    @property
    def is_finished(self) -> bool:
        """All the text there will ever be has been released."""
        return self._is_flushed

    @property
    def has_unsent(self) -> bool:
        """Something is released that the client's socket has not taken."""
        return (
            self._sent_tokens < self._released_tokens or self._sent_chars < self._stream.num_chars
        )

    @property
    def is_delivered(self) -> bool:
        """The client's socket has taken everything."""
        return self._is_flushed and not self.has_unsent

    def is_still(self) -> bool:
        """Nothing was generated since the last ``advance``, and nothing is left to be sent."""
        slots, slot = self._views.slots, self.slot
        if slots.load(slot, SlotWord.GENERATED) != self._stream.num_tokens:
            return False
        is_over = self.is_closed or self._is_flushed or slots.load(slot, SlotWord.FINISH) != 0
        return not (is_over or self.has_unsent)

    def advance(self, now_s: float) -> int:
        """Take the tokens generated since the last call; returns how many.

        The finish word is read before ``generated``: it carries the final count, so a reader that
        sees it knows exactly which tokens to wait for.

        Raises:
            HybridGenError: the words of the slot, or its ids, cannot be what anybody wrote.
        """
        if not self.has_unsent:
            self.idle_since_s = now_s  # a client that has everything keeps nobody waiting
        if self._is_flushed:
            return 0
        slots, slot = self._views.slots, self.slot
        finish = slots.load(slot, SlotWord.FINISH)
        generated = slots.load(slot, SlotWord.GENERATED)
        self._finish = unpack_finish(finish) if finish else None
        if generated and not self._prompt_len:
            # A text is opened before its prompt is encoded; by its first token the length stands.
            self._prompt_len = slots.load(slot, SlotWord.PROMPT_LEN)
            self._stream = self._open_stream()
        num_new = generated - self._stream.num_tokens
        self._take(generated)
        is_complete = (
            self._finish is not None and self._stream.num_tokens >= self._finish.num_tokens
        )
        if self._stream.matched_tokens is not None or is_complete or self.is_closed:
            self._release(self._stream.finish())
            self._is_flushed = True
        return max(0, num_new)

    def _take(self, generated: int) -> None:
        """Push the ids up to ``generated``, slice by slice, or up to a match."""
        stream = self._stream
        while stream.num_tokens < generated and stream.matched_tokens is None:
            start = self._prompt_len + stream.num_tokens
            stop = min(start + SLICE_TOKENS, self._prompt_len + generated)
            ids = self._views.tokens.read(self.slot, start, stop)
            check_ids(min(ids), max(ids), self._vocabulary.vocab_size)
            self._release(stream.push(ids))
            if stream.matched_tokens is not None:
                self._views.slots.store(self.slot, SlotWord.STOP, 1 + stream.matched_tokens)
            elif stream.num_tokens < generated:
                self._beat()

    def _release(self, released: Released | None) -> None:
        if released is None:
            return
        self._released_tokens += released.num_tokens
        if released.text:
            self._text.append(released.text)
            self._unsent.append(released.text)

    def close(self, error: HybridGenError | None = None) -> None:
        """What is generated by now is all there will be.

        Args:
            error: why the text is given up; None when the request was ended from outside.
        """
        self.is_closed = True
        self._error = error

    def subscribe(self, token_offset: int, char_offset: int, now_s: float) -> None:
        """The client holds this much of the text; send the rest.

        Call after ``advance``: a rebuilt text has to reach the point that the client knows of.
        """
        self.is_subscribed = True
        self.idle_since_s = now_s
        whole = "".join(self._text)
        self._text = [whole]
        self._sent_tokens = min(max(0, token_offset), self._released_tokens)
        self._sent_chars = min(max(0, char_offset), len(whole))
        self._unsent = [whole[self._sent_chars :]]

    def pending_delta(self) -> TextDelta | None:
        """What the client's socket has not taken yet.

        Raises:
            InternalError: the logprobs of these tokens were overwritten.
        """
        if not self.has_unsent:
            return None
        start = self._prompt_len + self._sent_tokens
        stop = self._prompt_len + self._released_tokens
        return TextDelta(
            self.request_id,
            self._sent_tokens,
            self._sent_chars,
            "".join(self._unsent),
            self._views.tokens.read(self.slot, start, stop),
            None if self._params.logprobs is None else self._read_logprobs(),
        )

    def mark_sent(self, delta: TextDelta, now_s: float) -> None:
        """The socket took ``delta``."""
        self._sent_tokens += len(delta.token_ids)
        self._sent_chars += len(delta.text)
        self._unsent.clear()
        self.idle_since_s = now_s
        if delta.token_ids:
            self.last_sent_s = now_s

    def _read_logprobs(self) -> list[TokenLogprob]:
        records = []
        for index in range(self._sent_tokens, self._released_tokens):
            record = self._views.logprobs.read(self.slot, index)
            if record is None:
                raise InternalError(
                    "log-probabilities were overwritten before the client read them",
                    value=f"token {index}",
                    limit=f"{self._views.logprobs.depth} tokens behind",
                    remedy="Read the stream faster, or ask without logprobs",
                )
            records.append(record)
        return records

    def report(self) -> TextFinished:
        """The fact for the coscheduler; call once ``is_delivered``, or when giving the text up."""
        reason, error = FinishReason.CANCELLED, None
        if self._stream.matched_tokens is not None:
            reason = FinishReason.STOP_STRING
        elif self._finish is not None:
            reason = self._finish.reason
            if reason is FinishReason.ERROR:
                error = ErrorInfo.of(self._finish.row_error.exception())
        elif self._error is not None:
            error = ErrorInfo.of(self._error)
        self.is_reported = True
        return TextFinished(
            slot=self.slot,
            epoch=self.epoch,
            num_tokens=self._released_tokens,
            num_chars=self._stream.num_chars,
            finish_reason=int(reason),
            error=error,
        )
