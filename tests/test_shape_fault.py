from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hybridgen.shape_fault import ShapeFault


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    size: int


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    inner: list[Inner]
    names: dict[int, str] = {}


@pytest.mark.parametrize(
    ("value", "path", "unknown_key", "missing_key"),
    [
        ([], "", "", ""),
        ({}, "", "", "inner"),
        ({"inner": [], "a`\n$b": 1}, "", "a`\n$b", ""),
        ({"inner": [{}]}, ".inner[0]", "", "size"),
        ({"inner": [{"size": 1, "x": 2}]}, ".inner[0]", "x", ""),
        ({"inner": [{"size": "1"}]}, ".inner[0].size", "", ""),
        ({"inner": [], "names": {"x": "y"}}, ".names", "", ""),
    ],
)
def test_a_fault_is_read_with_its_place_and_key(
    value: Any, path: str, unknown_key: str, missing_key: str
) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, Outer)
    fault = ShapeFault.of(caught.value)
    assert (fault.path, fault.unknown_key, fault.missing_key) == (path, unknown_key, missing_key)
    assert fault.problem.startswith(("Expected", "Object"))
    assert " - at " not in fault.problem
