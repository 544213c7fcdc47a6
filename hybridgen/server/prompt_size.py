"""Prompts that cannot fit are refused before anything is done with them."""

from __future__ import annotations

from collections.abc import Iterable

from hybridgen.errors import ContextLengthExceeded
from hybridgen.request import MAX_BYTES_PER_TOKEN
from hybridgen.server.request_limits import RequestLimits

#: JSON may write each byte as an escape such as \u0041.
_MAX_JSON_PER_BYTE = 6
#: Beside its text a body has keys, some for each message.
_MAX_KEY_BYTES = 4 * 2**20


def check_body(body: bytes, param: str, max_prompts: int, limits: RequestLimits) -> None:
    """The size of a body, before it is parsed: parsing costs time even if all is refused then.

    Args:
        body: JSON, with at most ``max_prompts`` prompts.
        param: the key of the prompt.
        max_prompts: prompts that a body of its kind may hold.
        limits: of this server.

    Raises:
        ContextLengthExceeded: no prompts that fit would make a body so large.
    """
    if limits.max_model_len is None:
        return
    max_text_bytes = MAX_BYTES_PER_TOKEN * limits.max_model_len * max_prompts
    limit = _MAX_JSON_PER_BYTE * max_text_bytes + _MAX_KEY_BYTES
    if len(body) > limit:
        raise ContextLengthExceeded(
            "the body is larger than the context could need",
            param=param,
            value=len(body),
            limit=limit,
            remedy="Send a shorter prompt",
        )


def check_texts(texts: Iterable[str], param: str, limits: RequestLimits) -> None:
    """All ``texts`` of a prompt together, against the bytes that its context could hold.

    Raises:
        ContextLengthExceeded: naming both sizes.
    """
    if limits.max_model_len is None:
        return
    limit = MAX_BYTES_PER_TOKEN * limits.max_model_len
    num_bytes = sum(len(text) if text.isascii() else len(text.encode()) for text in texts)
    if num_bytes > limit:
        raise ContextLengthExceeded(
            "the prompt has more bytes than the context could hold",
            param=param,
            value=num_bytes,
            limit=limit,
            remedy="Send a shorter prompt",
        )


def check_ids(ids: list[int], param: str, limits: RequestLimits) -> None:
    """The number of ``ids`` of a prompt, of which one more must fit.

    Raises:
        ContextLengthExceeded: naming both lengths.
    """
    limit = limits.max_model_len
    if limit is not None and len(ids) >= limit:
        raise ContextLengthExceeded(
            "the prompt leaves no room in the context",
            param=param,
            value=len(ids),
            limit=limit - 1,
            remedy="Send a shorter prompt",
        )
