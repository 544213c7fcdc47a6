from __future__ import annotations

import json
from typing import Any

import pytest

from hybridgen.errors import ContextLengthExceeded, HybridGenError, InvalidRequest
from hybridgen.request import ChatMessage, ChatPrompt, IdsPrompt, SamplingParams, TextPrompt
from hybridgen.server.generation import Generation
from hybridgen.server.request_limits import RequestLimits
from hybridgen.server.schema import (
    DEFAULT_COMPLETION_TOKENS,
    read_chat,
    read_completion,
    read_detokenize,
    read_tokenize,
)

LIMITS = RequestLimits(max_model_len=100, vocab_size=1000)


def chat(**keys: Any) -> Generation:
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], **keys}
    return read_chat(json.dumps(body).encode(), LIMITS)


def completion(**keys: Any) -> Generation:
    body = {"model": "demo", "prompt": "hi", **keys}
    return read_completion(json.dumps(body).encode(), LIMITS)


def refused(read: Any, **keys: Any) -> HybridGenError:
    with pytest.raises(HybridGenError) as error:
        read(**keys)
    assert error.value.http_status == 400
    return error.value


def test_a_bare_chat_takes_every_default() -> None:
    assert chat() == Generation(
        model="demo",
        prompts=[ChatPrompt([ChatMessage("user", "hi")])],
        params=SamplingParams(),
        is_chat=True,
    )


def test_a_bare_completion_takes_every_default() -> None:
    assert completion() == Generation(
        model="demo",
        prompts=[TextPrompt("hi")],
        params=SamplingParams(max_tokens=DEFAULT_COMPLETION_TOKENS),
        is_chat=False,
    )


def test_every_sampling_key_arrives() -> None:
    values = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.25,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
        "presence_penalty": -1.0,
        "frequency_penalty": 2,
        "seed": 2**64 - 1,
        "max_tokens": 9,
        "min_tokens": 2,
        "ignore_eos": True,
        "stop_regex": "a+b",
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
    }
    lists = {"logit_bias": {"5": -100, "7": 2.5}, "stop": ["a", "語"], "stop_token_ids": [1, 2]}
    wanted = SamplingParams(
        **values, logit_bias={5: -100.0, 7: 2.5}, stop=("a", "語"), stop_token_ids=(1, 2)
    )
    assert chat(**values, **lists).params == wanted
    assert completion(**values, **lists).params == wanted


def test_null_is_the_same_as_leaving_out() -> None:
    for read, bare in ((chat, chat()), (completion, completion())):
        keys = (
            *("temperature", "top_k", "top_p", "min_p", "seed", "n", "stop", "stop_token_ids"),
            *("logit_bias", "stream", "stream_options", "max_tokens", "logprobs", "user"),
            *("response_format", "metadata", "ignore_eos", "priority", "stop_regex"),
        )
        assert read(**dict.fromkeys(keys)) == bare


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("audio", {"voice": "x"}),
        ("function_call", {"name": "f"}),
        ("functions", [{"name": "f"}]),
        ("modalities", ["text", "audio"]),
        ("moderation", {}),
        ("prediction", {"type": "content", "content": "x"}),
        ("prompt_cache_options", {}),
        ("prompt_cache_retention", "24h"),
        ("prompt_logprobs", 1),
        ("reasoning_effort", "high"),
        ("service_tier", "priority"),
        ("store", True),
        ("store", 0),
        ("tool_choice", "required"),
        ("verbosity", "low"),
        ("web_search_options", {}),
    ],
)
def test_what_is_not_served_is_refused_by_its_name(key: str, value: Any) -> None:
    error = refused(chat, **{key: value})
    assert error.fields["param"] == key
    assert key in error.message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("function_call", "none"),
        ("functions", []),
        ("logit_bias", {}),
        ("metadata", {"a": "b"}),
        ("modalities", ["text"]),
        ("n", 1),
        ("parallel_tool_calls", True),
        ("parallel_tool_calls", False),
        ("prompt_cache_key", "k"),
        ("prompt_cache_retention", "in_memory"),
        ("response_format", {"type": "text"}),
        ("safety_identifier", "s"),
        ("service_tier", "auto"),
        ("stop", []),
        ("store", False),
        ("tool_choice", "auto"),
        ("tools", []),
        ("top_logprobs", 0),
        ("user", "u"),
        ("verbosity", "medium"),
    ],
)
def test_what_asks_for_nothing_special_is_accepted(key: str, value: Any) -> None:
    assert chat(**{key: value}) == chat()


@pytest.mark.parametrize(
    ("stop", "is_good"),
    [
        ("x", True),
        (["a", "b", "c", "d"], True),
        (".*+?()[]{}|^$\\", True),
        ("é" * 128, True),
        ("é" * 129, False),
        ("", False),
        ([""], False),
        (["a", "b", "c", "d", "e"], False),
        ("x" * 10**6, False),
        ("a\0", False),
    ],
)
def test_stop_strings_are_bounded_in_number_and_bytes(stop: Any, is_good: bool) -> None:
    if is_good:
        assert chat(stop=stop).params.stop == ((stop,) if isinstance(stop, str) else tuple(stop))
    else:
        assert refused(chat, stop=stop).fields["param"] == "stop"


def test_too_many_stop_ids_and_biases_are_refused() -> None:
    assert refused(chat, stop_token_ids=[1] * 65).fields["param"] == "stop_token_ids"
    bias = {str(token_id): 1 for token_id in range(513)}
    assert refused(chat, logit_bias=bias).fields["param"] == "logit_bias"


def test_usage_in_the_stream_comes_only_when_asked_for() -> None:
    assert not chat(stream=True).includes_usage
    assert not chat(stream=True, stream_options={}).includes_usage
    assert chat(stream=True, stream_options={"include_usage": True}).includes_usage
    error = refused(chat, stream_options={"include_usage": True})
    assert error.fields["param"] == "stream_options"
    error = refused(chat, stream=True, stream_options={"include_obfuscation": True})
    assert error.fields["param"] == "stream_options.include_obfuscation"


def test_a_chat_asks_for_logprobs_with_two_keys() -> None:
    assert chat(logprobs=False).params.logprobs is None
    assert chat(logprobs=True).params.logprobs == 0
    assert chat(logprobs=True, top_logprobs=20).has_logprobs
    assert refused(chat, top_logprobs=2).fields["param"] == "top_logprobs"


def test_a_completion_asks_for_logprobs_with_one_key() -> None:
    assert not completion().has_logprobs
    assert completion(logprobs=0).params.logprobs == 0
    assert refused(completion, logprobs=1, echo=True).fields["param"] == "echo"
    assert completion(echo=True).echoes


def test_two_names_of_one_limit_must_agree() -> None:
    assert chat(max_tokens=5, max_completion_tokens=5).params.max_tokens == 5
    assert chat(max_completion_tokens=7).params.max_tokens == 7
    error = refused(chat, max_tokens=5, max_completion_tokens=6)
    assert error.fields["param"] == "max_tokens"
    assert refused(chat, max_tokens=5, min_tokens=6).fields["param"] == "min_tokens"


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [
        ("a", [TextPrompt("a")]),
        ([1, 2], [IdsPrompt([1, 2])]),
        (["a", "b"], [TextPrompt("a"), TextPrompt("b")]),
        ([[1], [2, 3]], [IdsPrompt([1]), IdsPrompt([2, 3])]),
        ("<|im_end|>", [TextPrompt("<|im_end|>")]),
    ],
)
def test_a_prompt_is_a_text_or_ids_or_a_list_of_one_of_them(prompt: Any, wanted: Any) -> None:
    assert completion(prompt=prompt).prompts == wanted


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        ("", "prompt"),
        ([], "prompt"),
        ([""], "prompt[0]"),
        ([[]], "prompt[0]"),
        (["a", [1]], "prompt[1]"),
        (["a", 1], "prompt[1]"),
        ([1, "a"], "prompt[1]"),
        ([[1], 1], "prompt[1]"),
        ([[1, 1000]], "prompt[0]"),
        ([["a"]], "prompt[0][0]"),
        ([-1], "prompt[0]"),
        ([True], "prompt[0]"),
        ({"text": "a"}, "prompt"),
        (["a"] * 129, "prompt"),
    ],
)
def test_a_prompt_of_another_kind_is_refused_by_its_place(prompt: Any, param: str) -> None:
    assert refused(completion, prompt=prompt).fields["param"] == param


def test_a_missing_prompt_is_named() -> None:
    with pytest.raises(InvalidRequest) as error:
        read_completion(b"{}", LIMITS)
    assert error.value.fields["param"] == "prompt"


def test_all_choices_of_a_request_are_counted_together() -> None:
    assert chat(n=128).num_choices == 128
    assert refused(chat, n=129).fields["param"] == "n"
    assert completion(prompt=["a"] * 64, n=2).num_choices == 128
    assert refused(completion, prompt=["a"] * 65, n=2).fields["param"] == "prompt"
    few = RequestLimits(max_choices=4)
    with pytest.raises(InvalidRequest) as error:
        read_completion(b'{"prompt":"a","n":5}', few)
    assert error.value.fields["param"] == "n"


def test_best_of_must_be_n_and_suffix_empty() -> None:
    assert completion(best_of=3, n=3).n == 3
    assert refused(completion, best_of=3).fields["param"] == "best_of"
    assert completion(suffix="") == completion()
    assert refused(completion, suffix="x").fields["param"] == "suffix"


def test_a_prompt_at_the_limit_of_the_context_passes_and_beyond_is_refused() -> None:
    assert completion(prompt="é" * 400)
    assert completion(prompt=[5] * 99)
    for prompt, limit in (("é" * 401, 800), ("x" * 8000, 800), ([5] * 100, 99)):
        error = refused(completion, prompt=prompt)
        assert isinstance(error, ContextLengthExceeded)
        assert error.fields["limit"] == limit
    messages = [{"role": "user", "content": "x" * 401}] * 2
    assert isinstance(refused(chat, messages=messages), ContextLengthExceeded)


def test_a_body_larger_than_any_prompt_that_fits_is_refused_unread() -> None:
    spaces = b" " * (5 * 2**20)
    for read, param in (
        (read_chat, "messages"),
        (read_completion, "prompt"),
        (read_tokenize, "prompt"),
        (read_detokenize, "tokens"),
    ):
        with pytest.raises(ContextLengthExceeded) as error:
            read(spaces + b"no JSON at all", LIMITS)
        assert error.value.fields["param"] == param
        with pytest.raises(InvalidRequest, match="not valid JSON"):
            read(spaces + b"no JSON at all", RequestLimits())


def test_text_written_in_escapes_fits_as_well() -> None:
    limits = RequestLimits(max_model_len=150_000, max_choices=1)
    escaped = b"\\u007f" * (8 * 150_000)
    assert len(escaped) > 5 * 2**20
    (prompt,) = read_completion(b'{"prompt":"' + escaped + b'"}', limits).prompts
    assert prompt == TextPrompt("\x7f" * (8 * 150_000))


def test_without_known_limits_only_absolute_ones_are_checked() -> None:
    body = json.dumps({"prompt": [2**31 - 1] * 1000}).encode()
    assert len(read_completion(body, RequestLimits()).prompts[0].ids) == 1000
    with pytest.raises(InvalidRequest):
        read_completion(b'{"prompt":[2147483648]}', RequestLimits())


def test_tokenize_takes_a_text_or_messages() -> None:
    order = read_tokenize(b'{"model":"m","prompt":"a","add_special_tokens":true}', LIMITS)
    assert (order.model, order.prompt) == ("m", TextPrompt("a"))
    order = read_tokenize(b'{"messages":[{"role":"user","content":"a"}]}', LIMITS)
    assert order.prompt == ChatPrompt([ChatMessage("user", "a")])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{}", "prompt"),
        (b'{"prompt":"a","messages":[]}', "prompt"),
        (b'{"prompt":""}', "prompt"),
        (b'{"messages":[]}', "messages"),
        (b'{"prompt":"a","add_special_tokens":false}', "add_special_tokens"),
        (b'{"prompt":"a","prompt":"a"}', "prompt"),
        (b'{"prompt":"a","tools":[{"type":"function","function":{"name":"f"}}]}', "tools"),
        (b'{"prompt":"a","chat_template_kwargs":{"a":1}}', "chat_template_kwargs"),
    ],
)
def test_tokenize_refuses_by_name(body: bytes, param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        read_tokenize(body, LIMITS)
    assert error.value.fields["param"] == param


def test_detokenize_takes_ids_of_the_vocabulary() -> None:
    assert read_detokenize(b'{"tokens":[1,2]}', LIMITS).ids == [1, 2]
    assert read_detokenize(b'{"tokens":[]}', LIMITS).ids == []
    for tokens in (b"[1000]", b"[-1]", b'["a"]', b"5", b"null"):
        with pytest.raises(InvalidRequest) as error:
            read_detokenize(b'{"tokens":' + tokens + b"}", LIMITS)
        assert str(error.value.fields["param"]).startswith("tokens")
