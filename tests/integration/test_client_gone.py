"""A client that leaves frees its slot at once, in every phase and in every way to leave."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Iterator

import pytest

from hybridgen import SamplingParams
from hybridgen.errors import Cancelled
from tests.integration.test_gateway import CHAT, COMPLETIONS, Door, chat_body, raw_post
from tests.support.eventually import eventually
from tests.support.free_port import free_port
from tests.support.http2_client import Http2Connection
from tests.support.running_tree import running_tree

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

#: Enough for a busy machine.
FREED_S = 30.0
CONTEXT = 2048
PHASES = ["queue", "prefill", "decode"]
_TOKENS = itertools.count(65)
LONG = SamplingParams(max_tokens=CONTEXT - 64, min_tokens=CONTEXT - 64)


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    """One sequence at a time; a long prompt takes half a second, a long answer several."""
    port = free_port()
    with running_tree(
        model="mock",
        mock_step_us=4000,
        mock_max_model_len=CONTEXT,
        max_num_seqs=1,
        prefill_chunk=16,
        num_gateways=1,
        port=port,
    ) as tree:
        yield Door(tree, port)


def body_for(phase: str, *, is_stream: bool) -> tuple[str, dict[str, object]]:
    """A request that stays in ``phase`` for long enough."""
    if phase == "prefill":
        ids = [next(_TOKENS)] * (CONTEXT - 8)  # of which nothing is cached
        return COMPLETIONS, {"model": "mock", "prompt": ids, "max_tokens": 1, "stream": is_stream}
    tokens = CONTEXT - 64
    return CHAT, chat_body(max_tokens=tokens, min_tokens=tokens, stream=is_stream)


@contextlib.contextmanager
def busy_tree(door: Door, phase: str) -> Iterator[None]:
    """With somebody else's request in the only place, if there is to be a queue."""
    if phase != "queue":
        yield
        return
    other = door.tree.client.submit("Hello", LONG)
    eventually(lambda: door.tree.client.health().num_running == 1)
    yield
    other.close()
    with contextlib.suppress(Cancelled):
        other.result()
    eventually(lambda: num_requests(door) == 0)


def num_requests(door: Door) -> int:
    health = door.tree.client.health()
    return health.num_running + health.num_waiting


def wait_in(door: Door, phase: str) -> None:
    """Until the request is in ``phase``."""
    wanted = 2 if phase == "queue" else 1
    eventually(lambda: num_requests(door) == wanted)


def check_freed(door: Door, phase: str, num_cancelled: int) -> None:
    """The request was ended, one more than before, and did not end by itself."""
    left = 1 if phase == "queue" else 0
    eventually(lambda: num_requests(door) == left, FREED_S)
    eventually(lambda: door.tree.has_cancelled(num_cancelled + 1), FREED_S)


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("way", ["reset", "go_away", "half_close", "close"])
@pytest.mark.parametrize("phase", PHASES)
def test_leaving_over_http2_frees_the_slot(
    door: Door, phase: str, way: str, is_stream: bool
) -> None:
    path, body = body_for(phase, is_stream=is_stream)
    with busy_tree(door, phase), Http2Connection(door.port) as caller:
        stream = caller.send("POST", path, body)
        wait_in(door, phase)
        num_cancelled = door.tree.num_cancelled()
        if way == "reset":
            caller.reset(stream)
        elif way == "half_close":
            caller.half_close()
        else:
            if way == "go_away":
                caller.go_away()
            caller.close()
        check_freed(door, phase, num_cancelled)


@pytest.mark.parametrize("is_half", [True, False], ids=["half", "whole"])
@pytest.mark.parametrize("phase", PHASES)
def test_leaving_over_http1_frees_the_slot(door: Door, phase: str, is_half: bool) -> None:
    path, body = body_for(phase, is_stream=True)
    with (
        busy_tree(door, phase),
        socket.create_connection(("127.0.0.1", door.port)) as caller,
    ):
        caller.sendall(raw_post(path, body))
        wait_in(door, phase)
        num_cancelled = door.tree.num_cancelled()
        if is_half:
            caller.shutdown(socket.SHUT_WR)
        else:
            caller.close()
        check_freed(door, phase, num_cancelled)


def test_a_client_that_goes_away_still_gets_what_it_asked_for(door: Door) -> None:
    """GOAWAY alone says that nothing new will be asked, not that nothing is read any more."""
    with Http2Connection(door.port) as caller:
        stream = caller.send("POST", CHAT, chat_body(stream=True, max_tokens=24, min_tokens=24))
        caller.go_away()
        caller.wait(stream)
        events = caller.streams[stream].events
        assert events[-1] == "[DONE]"
        assert len(events) > 2


def test_a_reset_stream_leaves_the_others_of_its_connection_alone(door: Door) -> None:
    with Http2Connection(door.port) as caller:
        first, second = (
            caller.send("POST", CHAT, chat_body(stream=True, max_tokens=24, min_tokens=24))
            for _ in range(2)
        )
        caller.reset(first)
        caller.wait(second)
        assert caller.streams[second].events[-1] == "[DONE]"
