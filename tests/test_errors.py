from __future__ import annotations

import inspect
import pickle  # noqa: TID251  # errors must survive what concurrent.futures does with them
import re
from pathlib import Path

import msgspec
import pytest

from hybridgen import errors
from hybridgen.errors import (
    BY_CODE,
    MAX_SHOWN_CHARS,
    BadModelFile,
    HybridGenError,
    InternalError,
    from_wire,
)
from hybridgen.messages import ErrorInfo

CLASSES = sorted(
    (
        cls
        for _, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, HybridGenError)
    ),
    key=lambda cls: cls.__name__,
)


def sample(cls: type[HybridGenError]) -> HybridGenError:
    return cls("it failed", value=5, limit="[0, 4]", remedy="Take less", param="top_k", pid=7)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_survives_pickle(cls: type[HybridGenError]) -> None:
    error = sample(cls)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own bytes
    assert type(again) is cls
    assert (again.message, again.fields, str(again)) == (error.message, error.fields, str(error))


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_crosses_the_wire_as_its_own_class(cls: type[HybridGenError]) -> None:
    error = sample(cls)
    frame = msgspec.msgpack.encode(ErrorInfo.of(error))
    again = msgspec.msgpack.decode(frame, type=ErrorInfo).exception()
    assert type(again) is cls
    assert (again.message, again.fields, str(again)) == (error.message, error.fields, str(error))


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_has_its_own_code_and_sound_statuses(cls: type[HybridGenError]) -> None:
    assert BY_CODE[cls.code] is cls
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", cls.code)
    assert 400 <= cls.http_status <= 599
    assert cls.exit_code in (2, 65, 69, 70, 75, 77, 130)


def test_codes_are_unique_and_complete() -> None:
    assert len({cls.code for cls in CLASSES}) == len(CLASSES) == len(BY_CODE)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_says_what_it_means_and_stands_in_the_tree(cls: type[HybridGenError]) -> None:
    assert cls.__doc__ is not None
    assert cls.__doc__.strip()
    assert errors.__doc__ is not None
    assert re.search(rf"\b{cls.__name__}\b", errors.__doc__)


def test_the_tree_in_the_docs_names_no_class_that_is_not_there() -> None:
    assert errors.__doc__ is not None
    tree = errors.__doc__.split("::\n", 1)[1].split("\n\n\n")[0].split("An error's text")[0]
    names = set(re.findall(r"\b[A-Z][A-Za-z]+\b", tree))
    assert names == {cls.__name__ for cls in CLASSES}


def test_the_statuses_drawn_in_the_tree_are_the_classes_own() -> None:
    assert errors.__doc__ is not None
    drawn = re.findall(r"([A-Z][A-Za-z]+)\s+(\d{3})\b", errors.__doc__)
    assert len(drawn) > 5
    for name, status in drawn:
        assert getattr(errors, name).http_status == int(status)


def test_the_text_names_value_limit_and_remedy() -> None:
    text = str(errors.InvalidRequest("top_k is out of range", value=-2, limit=0, remedy="Raise it"))
    assert text == "top_k is out of range; got -2; limit 0. Raise it"
    assert str(errors.Cancelled("over")) == "over"


def test_only_fields_that_are_there_travel() -> None:
    assert errors.Died("gone", value=None, pid=3).fields == {"pid": 3}


def test_an_unknown_code_becomes_an_internal_error_that_keeps_it() -> None:
    error = from_wire("from_the_future", "what", {"value": 1})
    assert type(error) is InternalError
    assert error.fields == {"value": 1, "unknown_code": "from_the_future"}


@pytest.mark.parametrize("name", ["message", "self"])
def test_no_field_name_off_the_wire_can_break_the_rebuilding(name: str) -> None:
    error = from_wire("queue_full", "full", {name: "x"})
    assert type(error) is errors.QueueFull
    assert error.message == "full"


@pytest.mark.parametrize("cls", [errors.QueueFull, errors.Draining, errors.PeerGone])
def test_what_may_work_later_is_marked_so(cls: type[HybridGenError]) -> None:
    assert cls.retryable
    assert not errors.InvalidRequest.retryable


def test_the_documentation_lists_every_code() -> None:
    page = Path(__file__).parent.parent / "docs" / "errors.md"
    if not page.exists():
        pytest.skip("docs/errors.md is generated later")
    text = page.read_text()
    assert [code for code in BY_CODE if f"`{code}`" not in text] == []


def test_what_a_model_file_says_is_cut_where_an_error_shows_it() -> None:
    error = BadModelFile("x" * 10_000, field="y" * 10_000, value="z" * 10_000, remedy="Fetch it")
    assert len(str(error)) < 3 * MAX_SHOWN_CHARS
    assert len(str(error.fields["field"])) <= MAX_SHOWN_CHARS + 1
    assert error.fields["remedy"] == "Fetch it"
