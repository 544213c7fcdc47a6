"""Token ids → text of one request, as it grows: characters whole, stop strings held back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from hybridgen.text.incremental import IncrementalDecoder, unfinished_character
from hybridgen.text.stop_scanner import stop_scanner
from hybridgen.text.vocabulary import Vocabulary


class Released(NamedTuple):
    """New text, and how many further tokens the text so far needs.

    A token counts as soon as its first byte is out; one without visible bytes as soon as all
    before it is out. So the first n tokens always suffice to produce the text that they came with.
    """

    text: str
    num_tokens: int


class TextStream:
    """The text of one request.

    For every chunking of the ids the released texts, joined, equal
    ``vocabulary.decode(all ids, skip_special)``, cut at the first stop match. A token costs
    constant time: nothing is decoded twice.

    Args:
        vocabulary: bytes of the tokens.
        stops: stop strings, UTF-8.
        include_stop: keep the matched stop string at the end of the text.
        skip_special: special tokens add no text.
        prompt_tail_ids: last ids of the prompt, where the text continues one (as many as may
            share a character with the first new id; 4 suffice, as a character has 4 bytes). The
            text then keeps its leading space, and a character that the prompt began is shown
            when new ids finish it; nothing else of the prompt is.
        kept_marks: texts of special tokens that add text all the same.
        head: what the text begins with, before that of any token.
        stop_regex: pattern that stops the text like a stop string.

    Raises:
        InvalidRequest: a stop that cannot be used.

    Attributes:
        matched_tokens: number of pushed tokens up to and with the one that completed a stop
            string; None without a match. Later ids are ignored.
        num_tokens: tokens pushed so far, up to and with the one that completed a stop string.
        num_released: those of them that were released. num_chars: characters released.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        stops: Sequence[bytes] = (),
        include_stop: bool = False,
        skip_special: bool = True,
        prompt_tail_ids: Sequence[int] = (),
        *,
        kept_marks: frozenset[bytes] = frozenset(),
        head: str = "",
        stop_regex: str | None = None,
    ) -> None:
        tail = _text_tail(vocabulary, prompt_tail_ids)
        self._leading_space = vocabulary.leading_space
        self._is_started = bool(tail)
        self._bytes = vocabulary.visible_bytes(skip_special, kept_marks)
        self._texts = vocabulary.visible_texts(skip_special, kept_marks)
        self._head = head
        self._decoder = IncrementalDecoder(seed := unfinished_character(tail))
        self._scanner = stop_scanner(stops, stop_regex)
        self._include_stop = include_stop
        self._is_simple = self._is_started and not (seed or head) and self._scanner is None
        self._is_finished = False
        self._num_pushed_bytes = 0
        self._num_scanned_bytes = 0  # out of the scanner, into the decoder
        self._last_end = 0  # where the bytes of the last released token end
        self._ends: deque[int] = deque()  # the same for each token not released yet
        self.matched_tokens: int | None = None
        self.num_tokens = 0
        self.num_released = 0
        self.num_chars = 0

    def push(self, ids: Sequence[int]) -> Released | None:
        """Add generated ids; what that releases, or None when it releases nothing."""
        if self._is_simple:
            table = self._texts
            text = table[ids[0]] if len(ids) == 1 else _joined([table[one] for one in ids])
            if text is not None:
                num_tokens = len(ids)
                self.num_tokens += num_tokens
                self.num_released += num_tokens
                self.num_chars += len(text)
                return Released(text, num_tokens) if num_tokens else None
        return self._push_bytes(ids)

    def finish(self) -> Released | None:
        """End of the ids: everything that was held back."""
        if self._is_finished:
            return None
        self._is_finished = True
        self._is_simple = False
        held = self._scanner.held if self._scanner is not None else b""
        num_released = len(self._ends)
        self._ends.clear()
        return self._release(self._decoder.push(held) + self._decoder.finish(), num_released)

    def _push_bytes(self, ids: Sequence[int]) -> Released | None:
        """The general case: unfinished characters, the start of the text, stop strings."""
        text = ""
        for token_id in ids:
            if self._is_finished:
                break
            text += self._push_token(self._bytes[token_id])
        if self._is_finished:
            num_released = len(self._ends)
            self._ends.clear()
        else:
            num_released = self._pop_released()
            self._is_simple = (
                self._scanner is None and self._is_started and not self._decoder.num_pending
            )
        return self._release(text, num_released)

    def _push_token(self, data: bytes) -> str:
        self.num_tokens += 1
        if not self._is_started and data:
            data = self._leading_space.strip(data)
            self._is_started = bool(data) or not self._leading_space.is_greedy
        self._num_pushed_bytes += len(data)
        self._ends.append(self._num_pushed_bytes)
        if self._scanner is None:
            self._num_scanned_bytes = self._num_pushed_bytes
            return self._decoder.push(data)
        free = self._scanner.push(data)
        self._num_scanned_bytes += len(free)
        if self._scanner.match is None:
            return self._decoder.push(free)
        self._is_finished = True
        self.matched_tokens = self.num_tokens
        stop = self._scanner.match if self._include_stop else b""
        return self._decoder.push(free + stop) + self._decoder.finish()

    def _pop_released(self) -> int:
        """Drop the tokens whose first byte is out from the waiting ones; how many they were."""
        num_out = self._num_scanned_bytes - self._decoder.num_pending
        ends = self._ends
        num_released = 0
        while ends and (self._last_end < num_out or ends[0] <= num_out):
            self._last_end = ends.popleft()
            num_released += 1
        return num_released

    def _release(self, text: str, num_tokens: int) -> Released | None:
        text, self._head = self._head + text, ""
        if not text and not num_tokens:
            return None
        self.num_released += num_tokens
        self.num_chars += len(text)
        return Released(text, num_tokens)


def _joined(texts: list[str | None]) -> str | None:
    return None if None in texts else "".join(texts)  # type: ignore[arg-type]  # none is None


def _text_tail(vocabulary: Vocabulary, prompt_tail_ids: Sequence[int]) -> bytes:
    """Bytes of the prompt's last ids, from the last special one on: text begins anew after it."""
    tail = b""
    for token_id in reversed(prompt_tail_ids):
        if token_id in vocabulary.special_ids:
            break
        tail = vocabulary.token_bytes[token_id] + tail
    return tail
