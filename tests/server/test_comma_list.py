from __future__ import annotations

import pytest

from hybridgen.server.comma_list import comma_list


@pytest.mark.parametrize(
    ("text", "values"), [("", []), (" , ", []), ("a", ["a"]), (" a,, b c ,", ["a", "b c"])]
)
def test_values_are_taken_without_spaces_and_empty_ones_left_out(
    text: str, values: list[str]
) -> None:
    assert comma_list(text) == values
