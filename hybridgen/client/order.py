"""Checks what a user asks for, in the user's own thread, before anything is sent."""

from __future__ import annotations

import math

import msgspec

from hybridgen.errors import InvalidRequest
from hybridgen.messages import encode
from hybridgen.request import Prompt, PromptLike, SamplingParams, as_prompt

_PromptDecoder: msgspec.msgpack.Decoder[Prompt] = msgspec.msgpack.Decoder(Prompt)
_BIGGEST_TIMEOUT_S = 86_400.0


def checked_prompt(prompt: PromptLike) -> Prompt:
    """The prompt, sure to survive the wire.

    Raises:
        InvalidRequest: it is no prompt, or holds something that cannot be sent, such as half of
            a surrogate pair or an id beyond 64 bits.
    """
    wanted = as_prompt(prompt)
    try:
        return _PromptDecoder.decode(encode(wanted))
    except (UnicodeEncodeError, OverflowError, TypeError, msgspec.ValidationError) as error:
        raise InvalidRequest(
            f"the prompt cannot be sent: {error}",
            param="prompt",
            remedy="Pass valid text, ids of 0 … 2³¹-1, or messages of text",
        ) from None


def checked_params(params: SamplingParams | None) -> SamplingParams:
    """The parameters, of the right types and within their bounds.

    Raises:
        InvalidRequest: naming the parameter.
    """
    try:
        values = msgspec.to_builtins(params or SamplingParams(), builtin_types=(bytes,))
        wanted = msgspec.convert(values, SamplingParams)
    except (TypeError, msgspec.ValidationError) as error:
        raise InvalidRequest(
            f"a sampling parameter has the wrong type: {error}",
            param="params",
            remedy="See SamplingParams for the type of each",
        ) from None
    wanted.validate()
    return wanted


def check_timeout(timeout_s: float | None) -> None:
    """Refuse a deadline that is none.

    Raises:
        InvalidRequest: not a number of seconds above 0.
    """
    if timeout_s is None:
        return
    if not math.isfinite(timeout_s) or not 0 < timeout_s <= _BIGGEST_TIMEOUT_S:
        raise InvalidRequest(
            "timeout_s is out of range",
            param="timeout_s",
            value=str(timeout_s),
            limit=f"(0, {_BIGGEST_TIMEOUT_S:g}]",
            remedy="Give seconds, or None for the server's own limit",
        )
