from __future__ import annotations

from typing import Annotated, Any, Literal

import jsonschema
import msgspec
import pytest

from hybridgen.server.json_schema import Schema, SchemaWriter


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    """What is inside."""

    word: Annotated[str, msgspec.Meta(min_length=1, max_length=3)]


class Tagged(msgspec.Struct, tag_field="kind", tag="one", forbid_unknown_fields=True):
    pass


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    """What is outside.

    Not told.
    """

    inner: Inner
    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z]{2}\Z")] = "ab"
    count: Annotated[int, msgspec.Meta(ge=1, le=9)] | None = None
    share: float | None = None
    words: Annotated[list[Inner], msgspec.Meta(max_length=2)] | None = None
    numbers: Annotated[dict[str, float], msgspec.Meta(max_length=1)] | None = None
    level: Literal["low", "high"] = "low"
    tagged: Tagged | None = None
    later: msgspec.Raw = msgspec.Raw(b"null")


EXACT: dict[str, Schema] = {"Outer.share": {"minimum": 0}, "Outer.later": {"enum": [None, 1]}}
INNER = {"word": "abc"}


@pytest.fixture(scope="module")
def schema() -> Schema:
    writer = SchemaWriter(EXACT, {})
    return {**writer.ref(Outer), "components": {"schemas": writer.components}}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"count": 9, "share": 0.5, "words": [INNER], "numbers": {"a": 1.5}, "level": "high"},
        {"count": None, "share": None, "words": None, "numbers": None, "later": 1},
        {"name": "xy", "tagged": {"kind": "one"}},
    ],
)
def test_what_a_type_takes_its_schema_takes(schema: Schema, more: dict[str, Any]) -> None:
    value = {"inner": INNER, **more}
    msgspec.convert({key: one for key, one in value.items() if key != "later"}, Outer)
    jsonschema.validate(value, schema)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"inner": {}},
        {"inner": {"word": ""}},
        {"inner": {"word": "abcd"}},
        {"inner": INNER, "surprise": 1},
        {"inner": INNER, "name": "ABC"},
        {"inner": INNER, "count": 0},
        {"inner": INNER, "count": 10},
        {"inner": INNER, "count": 1.5},
        {"inner": INNER, "share": -0.1},
        {"inner": INNER, "words": [INNER] * 3},
        {"inner": INNER, "numbers": {"a": 1, "b": 2}},
        {"inner": INNER, "numbers": {"a": "1"}},
        {"inner": INNER, "level": "middle"},
        {"inner": INNER, "tagged": {}},
        {"inner": INNER, "later": 2},
    ],
)
def test_what_a_type_refuses_its_schema_refuses(schema: Schema, value: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(value, schema)


def test_structs_are_components_and_their_first_line_describes_them(schema: Schema) -> None:
    assert set(schema["components"]["schemas"]) == {"Outer", "Inner", "Tagged"}
    assert schema["components"]["schemas"]["Outer"]["description"] == "What is outside."
