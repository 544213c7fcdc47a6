"""The offline front door: a tree of its own, many prompts, results in order."""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from typing import Any

from hybridgen.client.batch import Batch
from hybridgen.client.client import Client
from hybridgen.client.order import checked_params
from hybridgen.config import Config
from hybridgen.errors import InvalidRequest
from hybridgen.launch.config_sources import config_from_options
from hybridgen.launch.tree import start_tree
from hybridgen.request import (
    ChatMessage,
    ChatPrompt,
    Prompt,
    PromptLike,
    RequestOutput,
    SamplingParams,
    as_prompt,
)
from hybridgen.tool import Tool, as_tools

Messages = Sequence[dict[str, Any]] | Sequence[ChatMessage]
ParamsLike = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """Starts a process tree, answers prompts, stops the tree.

    ::

        with LLM("demo", dtype="float32") as llm:
            for output in llm.generate(["Once upon", "A hill is"], SamplingParams(max_tokens=48)):
                print(output.text)

    The tree is a program of its own: a script that uses this class is never run a second time,
    and the tree ends with the script, however that ends.

    Args:
        model: a .hybridgen or GGUF file, a folder in Hugging Face layout, ``demo`` or ``mock``.
        options: any field of the configuration, e.g. ``max_model_len=4096``.

    Raises:
        ConfigError: an unknown option (names near matches) or a value out of range.
        HybridGenError: the tree could not start; the root cause.
    """

    def __init__(self, model: str = "demo", **options: Any) -> None:
        config = config_from_options({"model": model, **options})
        self._max_open = _max_open(config)
        self._tree = start_tree(config, quiet=True)
        try:
            self._client = Client(self._tree.uri)
        except BaseException:
            self._tree.stop()
            raise
        atexit.register(self.close)

    @property
    def uri(self) -> str:
        """The tree's address, for further clients."""
        return self._tree.uri

    def generate(
        self, prompts: PromptLike | Sequence[PromptLike], sampling_params: ParamsLike = None
    ) -> list[RequestOutput]:
        """Complete each prompt.

        Args:
            prompts: one prompt or many: texts, lists of token ids, or lists of messages.
            sampling_params: for all, or one for each.

        Returns:
            One output for each prompt, in order.

        Raises:
            InvalidRequest: a prompt or parameter that cannot be.
            HybridGenError: of the first request that failed; field ``prompt_index`` names it.
        """
        wanted = as_prompts(prompts)
        work = list(zip(wanted, spread_params(sampling_params, len(wanted)), strict=True))
        return Batch(self._client, work, self._max_open).run()

    def chat(
        self,
        conversations: Messages | Sequence[Messages],
        sampling_params: ParamsLike = None,
        *,
        tools: Sequence[Mapping[str, Any] | Tool] = (),
    ) -> list[RequestOutput]:
        """Answer one conversation (a list of messages) or many, through the chat template.

        Args:
            conversations: messages may carry ``tool_calls``, ``tool_call_id`` and ``name``.
            sampling_params: for all, or one for each.
            tools: functions that the model may call, as OpenAI's API has them. Its calls come as
                the text that it writes.
        """
        offered = as_tools(tools)
        prompts: list[PromptLike] = [
            ChatPrompt(prompt.messages, offered or prompt.tools, prompt.template_kwargs)
            if isinstance(prompt, ChatPrompt)
            else prompt
            for prompt in as_prompts(conversations)
        ]
        return self.generate(prompts, sampling_params)

    def tokenize(self, prompt: PromptLike) -> list[int]:
        """The token ids of a prompt."""
        return self._client.tokenize(prompt)

    def close(self) -> None:
        """Stop the tree; safe to repeat."""
        atexit.unregister(self.close)
        self._client.close()
        self._tree.stop()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def as_prompts(prompts: PromptLike | Sequence[PromptLike]) -> list[Prompt]:
    """One prompt or a list of them, as a list.

    A list of ids or of messages is one prompt; a list of texts or of lists is many.

    Raises:
        InvalidRequest: something in it is no prompt.
    """
    items: list[Any] | None = None
    if isinstance(prompts, Sequence) and not isinstance(prompts, str | bytes):
        items = list(prompts)
    if items is None or any(isinstance(item, int | dict | ChatMessage) for item in items):
        one: Any = prompts
        return [as_prompt(one)]
    return [as_prompt(item) for item in items]


def spread_params(params: ParamsLike, num_prompts: int) -> list[SamplingParams]:
    """Sampling parameters for each prompt.

    Raises:
        InvalidRequest: there are more or fewer of them than prompts, or one is out of range.
    """
    if params is None or isinstance(params, SamplingParams):
        params = [params or SamplingParams()] * num_prompts
    if len(params) != num_prompts:
        raise InvalidRequest(
            "sampling_params does not fit the prompts",
            param="sampling_params",
            value=len(params),
            limit=num_prompts,
            remedy="Give one for all, or one for each prompt",
        )
    return [checked_params(one) for one in params]


def _max_open(config: Config) -> int:
    """Two full batches, so that the next is ready when one row ends, within the backlog."""
    scheduler = config.scheduler
    return scheduler.max_num_seqs + min(scheduler.max_num_seqs, scheduler.backlog_limit)
