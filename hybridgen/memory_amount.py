"""Amounts of memory as people write them: shares of what there is, or bytes with a unit."""

from __future__ import annotations

import math
import re

from hybridgen.errors import ConfigError

_UNITS = {
    "": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate(("", "k", "m", "g", "t"))},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate(("k", "m", "g", "t"), start=1)},
}
_AMOUNT = re.compile(r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*(%|[a-z]*)", re.ASCII)


def bytes_of(amount: float | str, total_bytes: int | None, *, name: str) -> int:
    """An amount of memory in bytes.

    Args:
        amount: ``0.9`` or ``90%`` of all there is, or ``60GiB``, ``60GB``, ``64e9``; a number up to
            1 without a unit is a share.
        total_bytes: all there is; None where no share of it can be meant.
        name: of the option, for people.

    Raises:
        ConfigError: it is no such amount, none at all, or a share above all.
    """
    found = _AMOUNT.fullmatch(str(amount).strip().lower())
    number, unit = (float(found[1]), found[2]) if found else (math.nan, "")
    if unit == "%" or (unit == "" and number <= 1.0):
        share = number / 100 if unit == "%" else number
        size = share * total_bytes if share <= 1.0 and total_bytes is not None else math.nan
    else:
        size = number * _UNITS.get(unit, math.nan)
    if not 0 < size < math.inf:
        limit, examples = "bytes", "60GiB, 60GB or 64e9"
        if total_bytes is not None:
            limit = "a share above 0 and up to 1 or 100%, or bytes"
            examples = f"0.9, 90%, {examples}"
        raise ConfigError(
            f"{name} is no amount of memory",
            value=str(amount),
            limit=limit,
            remedy=f"Write it like {examples}",
        )
    return int(size)
