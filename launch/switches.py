"""`--flag true`, `--flag false` and plain `--flag`: all three for every on/off option."""

from __future__ import annotations

from collections.abc import Sequence

from hybridgen.launch.config_fields import config_fields
from hybridgen.launch.config_sources import FALSE_WORDS, TRUE_WORDS


def spell_out_switches(arguments: Sequence[str]) -> list[str]:
    """Give each bare switch its value, so that the parser sees one form only.

    ``--flag`` not followed by a word for true or false becomes ``--flag=true``.
    """
    switches = {field.flag for field in config_fields().values() if field.is_switch}
    words = TRUE_WORDS | FALSE_WORDS
    spelled: list[str] = []
    for i, argument in enumerate(arguments):
        following = arguments[i + 1].lower() if i + 1 < len(arguments) else ""
        is_bare = argument in switches and following not in words
        spelled.append(f"{argument}=true" if is_bare else argument)
    return spelled
