"""Puts the chunks of one request together again."""

from __future__ import annotations

from hybridgen.client.chunk import StreamChunk
from hybridgen.client.event import End
from hybridgen.request import IdsPrompt, Prompt, RequestOutput, TokenLogprob


class Collector:
    """Everything that one request brought."""

    __slots__ = ("_logprobs", "_prompt", "_texts", "_token_ids")

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] | None = None

    def add(self, chunk: StreamChunk) -> None:
        """Append the next chunk."""
        self._texts.append(chunk.text)
        self._token_ids.extend(chunk.token_ids)
        if chunk.logprobs is not None:
            if self._logprobs is None:
                self._logprobs = []
            self._logprobs.extend(chunk.logprobs)

    def output(self, end: End) -> RequestOutput:
        """The finished request.

        Raises:
            HybridGenError: the typed error that ended it.
        """
        if end.error is not None:
            raise end.error
        ids = self._prompt.ids if isinstance(self._prompt, IdsPrompt) else None
        return RequestOutput(
            prompt_token_ids=ids,
            num_prompt_tokens=end.num_prompt_tokens,
            num_cached_tokens=end.num_cached_tokens,
            token_ids=self._token_ids,
            text="".join(self._texts),
            finish_reason=end.finish_reason,
            logprobs=self._logprobs,
            seed=end.seed,
        )
