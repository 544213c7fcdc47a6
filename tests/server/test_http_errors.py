from __future__ import annotations

import json
import math
from typing import Any

import pytest

from hybridgen.errors import (
    BY_CODE,
    ChannelTimeout,
    ContextLengthExceeded,
    Draining,
    HybridGenError,
    InvalidRequest,
    ModelNotFound,
    OutOfBlocks,
    PeerGone,
    PoisonRequest,
    QueueFull,
    RestartBudgetSpent,
)
from hybridgen.server.http_errors import DEFAULT_RETRY_AFTER_S, error_body


def told(error: HybridGenError) -> tuple[int, dict[str, str], dict[str, Any]]:
    reply = error_body(error)
    headers = {name.decode(): value.decode() for name, value in reply.headers}
    return reply.status, headers, json.loads(reply.body)["error"]


@pytest.mark.parametrize("cls", BY_CODE.values(), ids=BY_CODE)
def test_every_error_of_the_tree_is_told_with_all_four_fields(cls: type[HybridGenError]) -> None:
    status, headers, error = told(cls("what is wrong", value=5, limit=4, remedy="Do this"))
    assert error == {
        "message": "what is wrong; got 5; limit 4. Do this",
        "type": error["type"],
        "param": None,
        "code": cls.code,
    }
    assert 400 <= status < 600
    assert (status >= 500) == (error["type"] == "server_error")
    assert headers["content-type"] == "application/json"
    assert ("retry-after" in headers) == (status in {429, 503})


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequest("x"), 400, "invalid_request_error"),
        (RestartBudgetSpent("x"), 503, "server_error"),
        (ContextLengthExceeded("x"), 400, "invalid_request_error"),
        (ModelNotFound("x"), 404, "invalid_request_error"),
        (QueueFull("x"), 429, "rate_limit_error"),
        (Draining("x"), 503, "server_error"),
        (PeerGone("x"), 503, "server_error"),
        (OutOfBlocks("x"), 503, "server_error"),
        (ChannelTimeout("x"), 504, "server_error"),
        (PoisonRequest("x"), 500, "server_error"),
    ],
)
def test_statuses_and_types_are_those_that_clients_act_on(
    error: HybridGenError, status: int, kind: str
) -> None:
    seen_status, _, fields = told(error)
    assert (seen_status, fields["type"]) == (status, kind)


def test_the_parameter_at_fault_is_named() -> None:
    assert told(InvalidRequest("x", param="messages[0].role"))[2]["param"] == "messages[0].role"


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(0.2, 1), (3, 3), (3.01, 4), (None, DEFAULT_RETRY_AFTER_S), (0.0, 1), (math.inf, 1), ("x", 1)],
)
def test_when_to_come_back_is_told_in_whole_seconds(given: Any, seconds: int) -> None:
    error = QueueFull("x", retry_after_s=given)
    assert told(error)[1]["retry-after"] == str(seconds)


def test_what_no_utf8_can_carry_is_escaped() -> None:
    message = told(InvalidRequest("half a pair \ud800", param="\udfff"))[2]
    assert message["message"] == "half a pair \\ud800"
    assert message["param"] == "\\udfff"
