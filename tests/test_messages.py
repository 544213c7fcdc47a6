from __future__ import annotations

import inspect
import re
import types
import typing
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen import messages
from hybridgen.config import Config
from hybridgen.errors import InvalidRequest, MessageCorrupt, QueueFull
from hybridgen.messages import Decoder, Message, encode
from hybridgen.request import (
    ChatMessage,
    ChatPrompt,
    Grammar,
    IdsPrompt,
    SamplingParams,
    TextPrompt,
    TokenLogprob,
)

UNIONS: dict[str, Any] = {
    name: union
    for name, union in vars(messages).items()
    if isinstance(union, types.UnionType)
    and all(isinstance(arm, type) and issubclass(arm, Message) for arm in typing.get_args(union))
}
SINGLES = {
    "TextOrder": messages.TextOrder,
    "SupervisorFact": messages.SupervisorFact,
}
STRUCTS = [
    cls
    for _, cls in inspect.getmembers(messages, inspect.isclass)
    if issubclass(cls, Message) and cls is not Message
]
RID = bytes(range(16))
PROMPTS = [
    TextPrompt("héllo \x00 語"),
    IdsPrompt([0, 1, 2**31 - 1]),
    ChatPrompt([ChatMessage("user", "hi")]),
]
PARAMS = SamplingParams(
    temperature=0.5,
    logit_bias={5: -1.5},
    seed=2**64 - 1,
    max_tokens=7,
    stop=("a", "b"),
    stop_token_ids=(3,),
    logprobs=2,
    grammar=Grammar("json_object"),
)
SAMPLES: dict[Any, Any] = {
    bytes: RID,
    str: "text",
    int: 7,
    float: 0.25,
    bool: True,
    SamplingParams: PARAMS,
    Config: Config(),
    messages.Prompt: PROMPTS[2],
    Grammar: Grammar("regex", "a+", "structured_outputs.regex"),
    messages.ErrorInfo: messages.ErrorInfo.of(QueueFull("full", value=3, retry_after_s=0.5)),
    TokenLogprob: TokenLogprob(5, -0.5, [(5, -0.5), (6, -1.5)]),
}


def sample(kind: Any) -> Any:
    """A value of type ``kind`` in which no field has its default."""
    if kind in SAMPLES:
        return SAMPLES[kind]
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return [sample(args[0]), sample(args[0])]
    if origin is dict:
        return {sample(args[0]): sample(args[1])}
    if origin in (types.UnionType, typing.Union):
        return sample(next(arm for arm in args if arm is not types.NoneType))
    hints = typing.get_type_hints(kind)
    return kind(**{name: sample(hints[name]) for name in kind.__struct_fields__})


def union_of(cls: type[Message]) -> Any:
    for union in UNIONS.values():
        if cls in typing.get_args(union):
            return union
    return next(single for single in SINGLES.values() if single is cls)


@pytest.mark.parametrize("cls", STRUCTS)
def test_every_message_survives_the_wire_through_its_channels_union(cls: type[Message]) -> None:
    message = sample(cls)
    assert Decoder(union_of(cls))(encode(message)) == message


@pytest.mark.parametrize("cls", STRUCTS)
def test_every_message_says_what_it_is_for_and_stands_in_the_life_of_a_request(
    cls: type[Message],
) -> None:
    assert cls.__doc__ is not None
    assert not cls.__doc__.startswith(cls.__name__ + "(")
    assert messages.__doc__ is not None
    assert re.search(rf"\b{cls.__name__}\b", messages.__doc__)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_every_kind_of_prompt_survives_the_wire(prompt: Any) -> None:
    order = messages.SubmitRequest(request_id=RID, prompt=prompt, params=PARAMS)
    assert Decoder(messages.ClientOrder)(encode(order)) == order


def as_map(message: Message) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.msgpack.decode(encode(message))
    return decoded


MAPS = [cls for cls in STRUCTS if not cls.__struct_config__.array_like]


@pytest.mark.parametrize("cls", MAPS)
def test_an_unknown_field_is_corrupt(cls: type[Message]) -> None:
    frame = msgspec.msgpack.encode({**as_map(sample(cls)), "surprise": 1})
    with pytest.raises(MessageCorrupt, match="surprise"):
        Decoder(union_of(cls))(frame)


@pytest.mark.parametrize("cls", MAPS)
def test_a_wrong_type_in_any_field_is_corrupt_and_named(cls: type[Message]) -> None:
    for field in cls.__struct_fields__:
        frame = msgspec.msgpack.encode({**as_map(sample(cls)), field: [[{"x": [None]}]]})
        with pytest.raises(MessageCorrupt, match=re.escape(f"$.{field}")):
            Decoder(union_of(cls))(frame)


@pytest.mark.parametrize("cls", MAPS)
def test_a_missing_required_field_is_corrupt(cls: type[Message]) -> None:
    for field in msgspec.structs.fields(cls):
        if field.required:
            whole = as_map(sample(cls))
            del whole[field.encode_name]
            with pytest.raises(MessageCorrupt, match=field.name):
                Decoder(union_of(cls))(msgspec.msgpack.encode(whole))


@pytest.mark.parametrize(
    "deltas",
    [
        [[RID, 0, 0, "x"]],
        [[RID, "0", 0, "x", [1]]],
        [[RID, 0, 0, "x", [1], None, "one too many"]],
        [[RID, 0, 0, b"\xff", [1]]],
        "no list",
    ],
)
def test_a_malformed_delta_is_corrupt(deltas: Any) -> None:
    with pytest.raises(MessageCorrupt):
        Decoder(messages.TextReply)(msgspec.msgpack.encode(["TextDeltas", deltas]))


def test_a_message_of_another_channel_is_corrupt() -> None:
    frame = encode(messages.StopTree(RID))
    with pytest.raises(MessageCorrupt, match="StopTree"):
        Decoder(messages.ClientOrder)(frame)


@pytest.mark.parametrize("name", sorted(UNIONS))
@given(frame=st.binary(max_size=200))
def test_garbage_is_corrupt_and_says_how_long_it_was(name: str, frame: bytes) -> None:
    with pytest.raises(MessageCorrupt, match=f"{len(frame)} bytes"):
        Decoder(UNIONS[name])(frame)


@given(cut=st.integers(0, 10_000), flip=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_damaged_frame_is_a_message_or_corrupt_and_nothing_else(
    cut: int, flip: int, bit: int
) -> None:
    frame = bytearray(encode(sample(messages.SubmitRequest)))
    frame[flip % len(frame)] ^= 1 << bit
    del frame[1 + cut % len(frame) :]
    try:
        message = Decoder(messages.ClientOrder)(bytes(frame))
    except MessageCorrupt:
        return
    assert isinstance(message, Message)


def test_deep_nesting_is_corrupt() -> None:
    with pytest.raises(MessageCorrupt):
        Decoder(messages.ClientOrder)(b"\x91" * 100_000)


@pytest.mark.parametrize("nest", [b"\x91", b"\x81\xa1a"])
def test_deep_nesting_before_the_tag_is_corrupt(nest: bytes) -> None:
    frame = b"\x82\xa1x" + nest * 100_000 + b"\xc0" + b"\xa4type\xacCancelRequest"
    with pytest.raises(MessageCorrupt):
        Decoder(messages.ClientOrder)(frame)


def test_an_error_crosses_as_its_class_and_fields() -> None:
    error = QueueFull("full", value=3, limit=2, retry_after_s=0.5)
    again = messages.ErrorInfo.of(error).exception()
    assert type(again) is QueueFull
    assert again.fields == error.fields


def test_an_error_can_be_sent_whatever_stands_in_it() -> None:
    error = InvalidRequest("no \ud800", param="\udfff", value=10**5000, limit=-(2**63))
    again = decode_error(messages.encode(messages.ErrorInfo.of(error)))
    assert again.message == "no \\ud800"
    assert again.fields["param"] == "\\udfff"
    assert again.fields["value"] == f"an integer of {(10**5000).bit_length()} bits"
    assert again.fields["limit"] == -(2**63)


def decode_error(frame: bytes) -> messages.ErrorInfo:
    return msgspec.msgpack.decode(frame, type=messages.ErrorInfo)
