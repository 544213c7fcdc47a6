"""Keys that are known and not served: refused by name, unless they ask for nothing.

Their values are kept as they were written (``msgspec.Raw``), so that a large or deep one costs
no more than to be skipped.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from hybridgen.errors import InvalidRequest

#: The value of a key that was left out.
NULL = msgspec.Raw(b"null")
#: No value that asks for nothing is longer.
_MAX_HARMLESS_BYTES = 256


def refuse_asked(
    value: msgspec.Raw, key: str, param: str, harmless: Collection[object] = ()
) -> None:
    """Let null and the ``harmless`` values of ``key`` pass.

    Args:
        value: as written in the body.
        key: its key.
        param: where that key stands, for the error.
        harmless: values that ask for nothing special.

    Raises:
        InvalidRequest: naming ``param``.
    """
    if value is NULL:
        return
    if _is_among(value, harmless):
        return
    accepted = ", ".join(msgspec.json.encode(one).decode() for one in (None, *harmless))
    raise InvalidRequest(
        f"{key} is not served yet", param=param, limit=accepted, remedy="Leave it out"
    )


def _is_among(value: msgspec.Raw, harmless: Collection[object]) -> bool:
    if len(bytes(value)) > _MAX_HARMLESS_BYTES:
        return False
    try:
        wanted = msgspec.json.decode(value)
    except msgspec.DecodeError:  # what a parser skips it does not look at closely
        return False
    # 0 == False in Python, not in JSON.
    return any(type(wanted) is type(one) and wanted == one for one in (None, *harmless))
