"""Checks what a user asks for, in the user's own thread, before anything is sent."""

from __future__ import annotations

import msgspec

from hybridgen.errors import InvalidRequest
from hybridgen.messages import encode
from hybridgen.request import Prompt, PromptLike, SamplingParams, as_prompt
from hybridgen.trace_context import TraceContext

_prompt_decoder: msgspec.msgpack.Decoder[Prompt] = msgspec.msgpack.Decoder(Prompt)


def checked_prompt(prompt: PromptLike) -> Prompt:
    """The prompt, sure to survive the wire.

    Raises:
        InvalidRequest: it is no prompt, or holds something that cannot be sent, such as half of
            a surrogate pair or an id beyond 64 bits.
    """
    wanted = as_prompt(prompt)
    try:
        return _prompt_decoder.decode(encode(wanted))
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


def checked_traceparent(traceparent: str) -> str:
    """The W3C trace context, or nothing where nothing was given.

    Raises:
        InvalidRequest: it is malformed.
    """
    if traceparent and TraceContext.parse(traceparent) is None:
        raise InvalidRequest(
            "the traceparent is malformed",
            param="traceparent",
            value=ascii(traceparent[:100]),
            limit="00-<32 hex digits>-<16 hex digits>-<2 hex digits>",
            remedy="Pass one as the W3C describes it, or none",
        )
    return traceparent
