"""A checked request: what both ways to generate (chat, completion) come down to."""

from __future__ import annotations

import msgspec

from hybridgen.request import MAX_SEED, Prompt, SamplingParams
from hybridgen.server.tool_use import ToolUse
from hybridgen.text.reasoning import ReasoningFormat


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the rest of the front door needs to know of a body.

    Choice i of the answer is sample i % n of prompt i // n.
    """

    model: str | None
    """As asked for; None when the body names none."""
    prompts: list[Prompt]
    """At least one; of a chat exactly one."""
    params: SamplingParams
    """Within every bound that can be known here."""
    n: int = 1
    """Choices per prompt."""
    priority: int = 0
    """Higher goes first."""
    is_chat: bool = True
    is_stream: bool = False
    includes_usage: bool = False
    """The stream ends with a chunk of token counts."""
    tools: ToolUse | None = None
    """The answer may hold calls of these."""
    reasoning: ReasoningFormat | None = None
    """The answer may begin with reasoning."""
    echoes: bool = False
    """A completion starts with its prompt."""

    @property
    def num_choices(self) -> int:
        """Sequences that this request runs."""
        return len(self.prompts) * self.n

    @property
    def has_logprobs(self) -> bool:
        """Whether log-probabilities are part of the answer."""
        return self.params.logprobs is not None

    def choice(self, index: int) -> tuple[Prompt, SamplingParams]:
        """Prompt and parameters of choice ``index``.

        The choices of a prompt would be equal if they shared a given seed: each counts on from it.
        """
        prompt_index, sample = divmod(index, self.n)
        params = self.params
        if params.seed is not None and sample > 0:
            seed = (params.seed + sample) & MAX_SEED
            params = msgspec.structs.replace(params, seed=seed)
        return self.prompts[prompt_index], params


class TokenizeOrder(msgspec.Struct, frozen=True):
    """A prompt whose ids are asked for."""

    model: str | None
    prompt: Prompt


class DetokenizeOrder(msgspec.Struct, frozen=True):
    """Ids whose text is asked for."""

    model: str | None
    ids: list[int]
