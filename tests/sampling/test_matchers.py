"""Grammars over the mock vocabulary, whose tokens include halves of characters."""

from __future__ import annotations

import json
import random
import re

import jsonschema
import pytest
from llguidance import LLMatcher

from hybridgen.config import Config
from hybridgen.errors import InvalidRequest
from hybridgen.formats.mock_model import EOS_ID, VOCAB_SIZE, mock_model, token_bytes
from hybridgen.request import Grammar
from hybridgen.sampling.matchers import Matchers
from hybridgen.text.vocabulary import build_vocabulary

TOKENS = token_bytes()
#: So long texts end.
MAX_TOKENS = 300


@pytest.fixture(scope="module")
def matchers() -> Matchers:
    return Matchers(build_vocabulary(mock_model(Config()).tokenizer), [EOS_ID])


def allowed(matcher: LLMatcher) -> list[int]:
    mask = matcher.compute_bitmask()
    return [token for token in range(VOCAB_SIZE) if mask[token // 8] >> token % 8 & 1]


def random_text(matcher: LLMatcher, seed: int) -> bytes:
    """Tokens drawn until the end of text, which is taken as soon as it is allowed."""
    rng = random.Random(seed)
    text = b""
    for _ in range(MAX_TOKENS):
        ids = allowed(matcher)
        if EOS_ID in ids:
            return text
        token = rng.choice(ids)
        assert matcher.consume_token(token)
        text += TOKENS[token]
    raise AssertionError(f"no end: {text!r}")


SCHEMAS: list[dict[str, object]] = [
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    },
    {"enum": ["é", "日本", 'quo"te', None, 3]},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    {"type": "string", "maxLength": 3},
    {"type": "string", "pattern": "^[a-c]{2}\\d$"},
    {"type": "integer", "minimum": -5, "maximum": 17},
    {"type": "string", "format": "date"},
    {"anyOf": [{"const": 1}, {"type": "null"}]},
    {
        "$defs": {"leaf": {"type": "boolean"}},
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/leaf"}, "y": {"$ref": "#/$defs/leaf"}},
        "required": ["x", "y"],
        "additionalProperties": False,
    },
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_any_text_that_a_schema_allows_is_valid(
    matchers: Matchers, schema: dict[str, object]
) -> None:
    for seed in range(5):
        text = random_text(matchers.start(Grammar.json_schema(schema)), seed)
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    "pattern", [r"\d{3}-\d{4}", "(yes|no)", r"[^a-z\n]{1,5}", "a/b?", "日(本|é)🙂", r"\\+x"]
)
def test_any_text_that_an_expression_allows_matches_it(matchers: Matchers, pattern: str) -> None:
    for seed in range(5):
        text = random_text(matchers.start(Grammar("regex", pattern)), seed).decode()
        assert re.fullmatch(pattern, text)


@pytest.mark.parametrize(
    "texts", [["yes", "no"], ["a", "a"], ['"', "\\", "\n\t\x01"], ["/*", "é🙂"]]
)
def test_a_choice_gives_one_of_its_texts(matchers: Matchers, texts: list[str]) -> None:
    seen = {random_text(matchers.start(Grammar.choice(texts)), seed) for seed in range(20)}
    assert seen == {text.encode() for text in texts}


def test_a_lark_grammar_may_use_schemas_and_control_tokens(matchers: Matchers) -> None:
    lark = 'start: <|user|> OBJECT\nOBJECT: %json {"const": 7}'
    with pytest.raises(InvalidRequest):  # terminals hold no schemas
        matchers.start(Grammar("lark", lark))
    text = random_text(matchers.start(Grammar("lark", lark.replace("OBJECT", "object"))), 1)
    assert text == b"<|user|>7"


def test_control_tokens_do_not_spell_text(matchers: Matchers) -> None:
    matcher = matchers.start(Grammar("regex", r"<\|user\|>"))
    assert allowed(matcher) == [ord("<")]


def test_the_end_is_allowed_only_where_the_text_is_complete(matchers: Matchers) -> None:
    matcher = matchers.start(Grammar("regex", "ab?"))
    assert EOS_ID not in allowed(matcher)
    matcher.consume_token(ord("a"))
    assert allowed(matcher) == [ord("b"), EOS_ID]
    matcher.consume_token(ord("b"))
    assert allowed(matcher) == [EOS_ID]


def test_every_spelling_of_a_text_is_allowed(matchers: Matchers) -> None:
    ids = allowed(matchers.start(Grammar("regex", "the time")))
    assert sorted(TOKENS[token] for token in ids) == [b"t", b"the"]


def test_matchers_of_one_grammar_do_not_disturb_each_other(matchers: Matchers) -> None:
    grammar = Grammar("regex", "ab")
    first = matchers.start(grammar)
    first.consume_token(ord("a"))
    assert allowed(matchers.start(grammar)) == [ord("a")]
    assert allowed(first) == [ord("b")]


def test_more_grammars_than_are_kept_still_work(matchers: Matchers) -> None:
    for number in range(40):
        assert random_text(matchers.start(Grammar("regex", f"x{number}")), 0) == b"x%d" % number


HOSTILE = {
    "look-ahead": Grammar("regex", "(?=a)b"),
    "back-reference": Grammar("regex", r"(a)\1"),
    "unclosed": Grammar("regex", "(a"),
    "deep": Grammar("regex", "(" * 20_000 + "a" + ")" * 20_000),
    "many dots": Grammar("regex", ".*" * 500 + "x"),
    "nothing": Grammar("regex", r"[^\s\S]"),
    "no schema fits": Grammar("json_schema", "false"),
    "refers to itself": Grammar.json_schema({"$ref": "#"}),
    "remote": Grammar.json_schema({"$ref": "http://127.0.0.1:1/x.json"}),
    "product": Grammar.json_schema(
        {
            "allOf": [
                {"anyOf": [{"properties": {f"k{i}{j}": {"type": "string"}}} for j in range(4)]}
                for i in range(12)
            ]
        }
    ),
    "remainders": Grammar.json_schema(
        {"allOf": [{"type": "integer", "multipleOf": n} for n in (7, 11, 13, 17, 19, 23)]}
    ),
    "format": Grammar.json_schema({"type": "string", "format": "no-such-format"}),
    "type": Grammar.json_schema({"type": "strin"}),
    "oneOf that may overlap": Grammar.json_schema(
        {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}
    ),
    "many ways": Grammar("lark", "start: " + " ".join(['"a"?'] * 2000)),
    "parentheses": Grammar("lark", "start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "no lark": Grammar("lark", "((("),
    "no start": Grammar("lark", 'other: "a"'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_followed_is_refused_in_one_short_line(
    matchers: Matchers, name: str
) -> None:
    grammar = Grammar(HOSTILE[name].kind, HOSTILE[name].text, "structured_outputs")
    with pytest.raises(InvalidRequest) as error:
        matchers.start(grammar)
    assert error.value.fields["param"] == "structured_outputs"
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|b)*a(a|b){20}", ".*a.{25}", "((a{1000}){1000}){1000}"]
)
def test_expressions_that_explode_elsewhere_are_followed(matchers: Matchers, pattern: str) -> None:
    matcher = matchers.start(Grammar("regex", pattern))
    for _ in range(50):
        assert matcher.consume_token(ord("a"))
        assert ord("a") in allowed(matcher)


def test_a_grammar_that_grows_too_costly_on_its_way_stops(matchers: Matchers) -> None:
    matcher = matchers.start(Grammar("lark", 'start: s\ns: s s s s | s s s | s s | "a" | "b"'))
    for _ in range(200):
        matcher.consume_token(ord("a"))
        matcher.compute_bitmask()
        if matcher.is_error():
            return
    raise AssertionError("it went on")


def test_a_model_without_an_end_of_text_takes_no_grammar() -> None:
    none = Matchers(build_vocabulary(mock_model(Config()).tokenizer), [])
    with pytest.raises(InvalidRequest):
        none.start(Grammar("json_object"))
