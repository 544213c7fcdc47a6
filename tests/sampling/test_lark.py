from __future__ import annotations

import json

import pytest

from hybridgen.errors import InvalidRequest
from hybridgen.request import Grammar
from hybridgen.sampling.lark import as_lark
from hybridgen.sampling.schema_keys import MAX_REMAINDERS, read_schema


def schema_of(lark: str) -> dict[str, object]:
    text = lark.split("%json ", 1)[1].split("\n%llguidance", 1)[0]
    schema: dict[str, object] = json.loads(text)
    return schema


def test_a_lark_grammar_stays_as_it_is_and_lets_the_model_choose_its_tokens() -> None:
    lark = as_lark(Grammar("lark", 'start: "a"'))
    assert lark.startswith('start: "a"\n')
    assert '"no_forcing": true' in lark


def test_an_expression_cannot_end_before_its_end() -> None:
    assert as_lark(Grammar("regex", "a/b")).startswith(r"start: /a\/b/")


@pytest.mark.parametrize("text", ['{"type": "string", "x-guidance": {"lenient": true}}', "{}"])
def test_a_schema_cannot_set_how_it_is_read(text: str) -> None:
    options = schema_of(as_lark(Grammar("json_schema", text)))["x-guidance"]
    assert isinstance(options, dict)
    assert options["lenient"] is False


def test_a_json_object_is_the_schema_of_any_object() -> None:
    assert schema_of(as_lark(Grammar("json_object")))["type"] == "object"


@pytest.mark.parametrize(("text", "schema"), [("true", {}), ("false", {"enum": []})])
def test_true_and_false_are_schemas(text: str, schema: dict[str, object]) -> None:
    assert read_schema(Grammar("json_schema", text)) == schema


@pytest.mark.parametrize("text", ["", "{", "[1]", "1", '"text"', "NaN", '{"const": 1e400}'])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        read_schema(Grammar("json_schema", text, "response_format"))
    assert error.value.fields["param"] == "response_format"


def test_endless_nesting_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        read_schema(Grammar("json_schema", '{"not":' * 5000 + "1" + "}" * 5000))


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"uniqueItems": True}, "$.uniqueItems"),
        ({"not": {}}, "$.not"),
        ({"fooBar": 1}, "$.fooBar"),
        ({"properties": {"a": {"nullable": True}}}, "$.properties.a.nullable"),
        ({"items": {"contains": {}}}, "$.items.contains"),
        ({"items": [{"if": {}}]}, "$.items[0].if"),
        ({"anyOf": [{}, {"propertyNames": {}}]}, "$.anyOf[1].propertyNames"),
        ({"$defs": {"x": {"dependentRequired": {}}}}, "$.$defs.x.dependentRequired"),
        ({"additionalProperties": {"minContains": 1}}, "$.additionalProperties.minContains"),
    ],
)
def test_a_keyword_that_is_not_followed_is_named_with_its_place(
    schema: dict[str, object], place: str
) -> None:
    with pytest.raises(InvalidRequest) as error:
        read_schema(Grammar.json_schema(schema, "response_format"))
    assert error.value.fields["value"] == place
    assert place.rpartition(".")[2] in error.value.message


def test_names_of_properties_and_values_are_not_keywords() -> None:
    schema = {
        "properties": {"not": {"const": {"if": 1}}, "anyOf": {"enum": [{"fooBar": 1}]}},
        "required": ["not"],
        "default": {"uniqueItems": 1},
        "description": "uniqueItems",
    }
    assert read_schema(Grammar.json_schema(schema)) == schema


def test_multiples_with_too_many_remainders_are_refused() -> None:
    for multiple in (9999, 0.01, 10**9, 2.5):
        read_schema(Grammar.json_schema({"multipleOf": multiple}))
    for multiples in ([10_001], [7, 11, 13, 17], [0.123457]):
        schema = {"allOf": [{"items": {"multipleOf": multiple}} for multiple in multiples]}
        with pytest.raises(InvalidRequest) as error:
            read_schema(Grammar.json_schema(schema))
        assert error.value.fields["limit"] == MAX_REMAINDERS
