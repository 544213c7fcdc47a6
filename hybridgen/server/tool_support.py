"""What the front door knows of the way its model writes calls."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hybridgen.text.tool_calls.call_format import CallFormat
from hybridgen.text.vocabulary import Vocabulary


class ToolSupport(msgspec.Struct, frozen=True):
    """A format, and which of its marks are special tokens of the model."""

    format: CallFormat
    special_ids: Mapping[str, int] = {}
    """Mark → id."""

    @classmethod
    def of(cls, format_: CallFormat | None, vocabulary: Vocabulary) -> ToolSupport | None:
        """For a model; None when it has no format that is known."""
        if format_ is None:
            return None
        marks = set(format_.marks)
        found = {
            text: token_id
            for token_id in sorted(vocabulary.special_ids)
            if (text := vocabulary.token_bytes[token_id].decode("utf-8", "replace")) in marks
        }
        return cls(format_, found)
