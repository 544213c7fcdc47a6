from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.text.tool_calls.json_scanner import JsonScanner
from tests.text.tool_calls.cut_text import cuts

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@given(VALUES, st.sampled_from([None, 2]), st.booleans(), st.data())
def test_a_value_ends_where_it_ends_however_it_is_cut(
    value: Any, indent: int | None, is_ascii: bool, data: st.DataObject
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
    scanner, taken = JsonScanner(), 0
    for piece in data.draw(cuts(text)):
        assert scanner.feed(piece, 0) == len(piece)
        taken += len(piece)
    assert scanner.feed("} and more", 0) == 0
    assert scanner.is_complete
    assert taken == len(text)


@pytest.mark.parametrize(
    ("text", "taken"), [("{]", 1), ("{'a'", 1), ("<", 0), ("}", 0), ('{"a": [1}', 8), ("{<", 1)]
)
def test_what_cannot_go_on_as_json_is_broken(text: str, taken: int) -> None:
    scanner = JsonScanner()
    assert scanner.feed(text, 0) == taken
    assert scanner.is_broken
    assert not scanner.is_complete
