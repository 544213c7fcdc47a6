"""Streamed answers as server-sent events.

Most of an event is the same for all of a stream, so it is written once; a token costs the encoding
of its own text and one join. Every method gives whole frames (``data: …`` and an empty line).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hybridgen.client.chunk import StreamChunk
from hybridgen.errors import HybridGenError
from hybridgen.request import RequestOutput
from hybridgen.server.answer_reader import Reader, answer_reader
from hybridgen.server.answers import AnswerHead, Usage, echoed, public_finish_reason
from hybridgen.server.generation import Generation
from hybridgen.server.http_errors import error_object
from hybridgen.server.logprobs import Vocabulary, chat_logprobs, completion_logprobs
from hybridgen.server.tool_answer import Delta

#: The last frame of every stream that ended well.
DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


def error_event(error: HybridGenError) -> bytes:
    """An error in mid-stream; nothing follows it."""
    return b"data: " + _encode({"error": error_object(error)}) + b"\n\n"


class EventEncoder:
    """The frames of one streamed answer.

    Args:
        head: id, time and model of the answer.
        generation: what was asked.
        vocabulary: the model's.
    """

    def __init__(self, head: AnswerHead, generation: Generation, vocabulary: Vocabulary) -> None:
        self._generation = generation
        self._vocabulary = vocabulary
        self._is_chat = generation.is_chat
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        facts = {"id": head.id, "object": kind, "created": head.created, "model": head.model}
        self._head = b"data: " + _encode(facts)[:-1]
        # With include_usage every event but the last says that there is none in it.
        self._usage = b',"usage":null' if generation.includes_usage else b""
        field = b'"delta":{"content":' if self._is_chat else b'"text":'
        self._starts = [
            b'%b,"choices":[{"index":%d,%b' % (self._head, index, field)
            for index in range(generation.num_choices)
        ]
        self._end_of_text = b"}" if self._is_chat else b""
        self._plain_end = self._end_of_text + self._tail(b"null", None)
        self._num_chars = [0] * generation.num_choices
        readers = (answer_reader(generation) for _ in range(generation.num_choices))
        self._readers: list[Reader] = [reader for reader in readers if reader is not None]

    def first(self, index: int) -> bytes:
        """Opens choice ``index``: a chat's role, an echoed prompt, or nothing."""
        if self._is_chat:
            start = b'%b,"choices":[{"index":%d,' % (self._head, index)
            # An answer of nothing but calls or reasoning has no content, and nobody knows yet.
            content = b"null" if self._readers else b'""'
            delta = b'"delta":{"role":"assistant","content":%b}' % content
            return start + delta + self._tail(b"null", None)
        if not self._generation.echoes:
            return b""
        prompt, _ = self._generation.choice(index)
        return self._starts[index] + _encode(echoed(prompt, self._vocabulary)) + self._plain_end

    def delta(self, index: int, chunk: StreamChunk) -> bytes:
        """The next piece of choice ``index``; nothing when there is nothing to tell."""
        if self._readers:
            deltas = self._readers[index].push(chunk.text)
            return self._deltas(index, deltas, chunk)
        if chunk.logprobs is None:
            if not chunk.text:
                return b""
            return self._starts[index] + _encode(chunk.text) + self._plain_end
        end = self._end_of_text + self._tail(self._logprobs(index, chunk), None)
        return self._starts[index] + _encode(chunk.text) + end

    def finish(self, index: int, finish_reason: str, seed: int | None = None) -> bytes:
        """Closes choice ``index``.

        Args:
            index: of the choice.
            finish_reason: why it ended.
            seed: with which it can be had again, where that is known.

        Raises:
            Cancelled: it did not end by itself; the stream ends with an error then.
        """
        reason = public_finish_reason(finish_reason)
        rest = b""
        if self._readers:
            reader = self._readers[index]
            rest = self._deltas(index, reader.finish())
            reason = reader.finish_reason(reason)
        nothing = b'"delta":{}' if self._is_chat else b'"text":""'
        if seed is not None:
            nothing += b',"seed":%d' % seed
        start = b'%b,"choices":[{"index":%d,%b' % (self._head, index, nothing)
        return rest + start + self._tail(b"null", reason)

    def usage(self, outputs: Sequence[RequestOutput]) -> bytes:
        """Counts of all choices, in order; comes last, and only when asked for."""
        usage = Usage.of(outputs, self._generation, self._vocabulary)
        return self._head + b',"choices":[],"usage":' + _encode(usage) + b"}\n\n"

    def _deltas(self, index: int, deltas: list[Delta], chunk: StreamChunk | None = None) -> bytes:
        """A frame for each of ``deltas``, the last with the log-probabilities of ``chunk``."""
        start = b'%b,"choices":[{"index":%d,"delta":' % (self._head, index)
        logprobs = b"null"
        if chunk is not None and chunk.logprobs is not None:
            logprobs = self._logprobs(index, chunk)
            deltas = deltas or [Delta()]
        frames = [start + _encode(delta) + self._tail(b"null", None) for delta in deltas[:-1]]
        frames += [start + _encode(delta) + self._tail(logprobs, None) for delta in deltas[-1:]]
        return b"".join(frames)

    def _tail(self, logprobs: bytes, finish_reason: str | None) -> bytes:
        reason = _encode(finish_reason)
        return b',"logprobs":%b,"finish_reason":%b}]%b}\n\n' % (logprobs, reason, self._usage)

    def _logprobs(self, index: int, chunk: StreamChunk) -> bytes:
        tokens = chunk.logprobs or []
        if self._is_chat:
            return _encode(chat_logprobs(tokens, self._vocabulary))
        offset = self._num_chars[index]
        self._num_chars[index] += len(chunk.text)
        return _encode(completion_logprobs(tokens, self._vocabulary, chunk.text, offset))
