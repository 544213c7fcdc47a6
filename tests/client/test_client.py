from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hybridgen.client.client import Client
from hybridgen.client.limits import ClientLimits
from hybridgen.client.stream import Stream
from hybridgen.errors import (
    Cancelled,
    ChannelTimeout,
    ConfigError,
    HybridGenError,
    InvalidRequest,
    PeerGone,
    QueueFull,
)
from hybridgen.messages import SubmitRequest
from hybridgen.request import IdsPrompt, SamplingParams, TextPrompt
from tests.support.eventually import eventually
from tests.support.fake_server import SEED, FakeServer, golden_of

GOLDEN = golden_of(TextPrompt("tree"))
QUICK = ClientLimits(answer_timeout_s=0.3, resend_s=0.1, close_timeout_s=0.1)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeServer]:
    with FakeServer(tmp_path / "run") as server:
        yield server


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[FakeServer]:
    """A server that holds every text after four tokens."""
    with FakeServer(tmp_path / "run", gate=4) as server:
        yield server


def read_tokens(stream: Iterator[object], num_tokens: int) -> list[int]:
    ids: list[int] = []
    while len(ids) < num_tokens:
        ids += next(stream).token_ids  # type: ignore[attr-defined]
    return ids


def test_a_stream_yields_chunks_that_join_to_the_text(server: FakeServer) -> None:
    with Client(server.uri) as client, client.submit("tree", SamplingParams()) as stream:
        chunks = list(stream)
    assert "".join(chunk.text for chunk in chunks) == GOLDEN.text
    assert [i for chunk in chunks for i in chunk.token_ids] == GOLDEN.ids


def test_result_holds_the_whole_request_after_a_partial_read(server: FakeServer) -> None:
    with Client(server.runtime_dir.path) as client:
        stream = client.submit("tree")
        next(stream)
        output = stream.result()
        assert stream.result() == output
    assert (output.text, output.token_ids) == (GOLDEN.text, GOLDEN.ids)
    assert (output.finish_reason, output.num_prompt_tokens, output.seed) == ("length", 2, SEED)


def test_generate_acknowledges_so_that_the_slot_is_free_at_once(server: FakeServer) -> None:
    with Client(server.uri) as client:
        output = client.generate([5, 6, 7], SamplingParams(max_tokens=3, seed=5))
    assert output.prompt_token_ids == [5, 6, 7]
    assert output.token_ids == golden_of(IdsPrompt([5, 6, 7]), 3).ids
    assert output.seed == 5
    assert server.requests == {}


def test_questions_are_answered(server: FakeServer) -> None:
    with Client(server.uri) as client:
        assert client.tokenize("some text") == [1, 2, 3]
        assert client.health().is_ready
        assert client.ps().instance == "fake"
        client.stop()
    assert server.num_stops == 1


def test_the_error_in_an_answer_is_raised_as_its_class(server: FakeServer) -> None:
    with Client(server.uri) as client, pytest.raises(InvalidRequest, match="ids already"):
        client.tokenize([1, 2])


def test_a_rejection_is_raised_as_its_class_while_others_go_on(tmp_path: Path) -> None:
    def reject(order: SubmitRequest) -> HybridGenError | None:
        is_bad = order.prompt == TextPrompt("bad")
        return QueueFull("the backlog is full", retry_after_s=1.5) if is_bad else None

    with FakeServer(tmp_path / "run", reject=reject) as server, Client(server.uri) as client:
        with client.submit("bad") as stream, pytest.raises(QueueFull) as caught:
            next(stream)
        with pytest.raises(QueueFull):
            client.generate("bad")
        assert client.generate("tree").text == GOLDEN.text
    assert caught.value.fields["retry_after_s"] == 1.5


def test_bad_parameters_are_raised_before_anything_is_sent(server: FakeServer) -> None:
    with Client(server.uri) as client:
        with pytest.raises(InvalidRequest, match="top_p"):
            client.submit("tree", SamplingParams(top_p=7.0))
        with pytest.raises(InvalidRequest, match="prompt"):
            client.submit(b"bytes")  # type: ignore[arg-type]
    assert server.num_orders == 0


def test_an_order_larger_than_a_frame_ends_with_a_typed_error(server: FakeServer) -> None:
    with Client(server.uri) as client:
        with pytest.raises(InvalidRequest, match="too large"):
            client.generate("x" * (34 * 1024 * 1024))
        assert client.generate("tree").text == GOLDEN.text


@pytest.mark.parametrize("socket", ["text-0", "clients"])
def test_a_stream_goes_on_after_a_socket_was_replaced(gated: FakeServer, socket: str) -> None:
    with Client(gated.uri) as client, client.submit("tree") as stream:
        ids = read_tokens(stream, 4)
        gated.replace(socket)
        gated.open_gate()
        output = stream.result()
    assert ids == GOLDEN.ids[:4]
    assert (output.text, output.token_ids) == (GOLDEN.text, GOLDEN.ids)


def test_a_stream_follows_its_text_to_another_detokenizer(gated: FakeServer) -> None:
    with Client(gated.uri) as client, client.submit("tree") as stream:
        read_tokens(stream, 4)
        gated.move_texts(1)
        gated.open_gate()
        assert stream.result().text == GOLDEN.text


def test_leaving_the_stream_cancels_it(gated: FakeServer) -> None:
    with Client(gated.uri) as client:
        with client.submit("tree") as stream:
            read_tokens(stream, 4)
        eventually(lambda: gated.requests == {})
        assert len(gated.cancelled) == 1
        assert client.generate("oak", SamplingParams(max_tokens=4)).text


def test_a_closed_stream_keeps_nobody_waiting(gated: FakeServer) -> None:
    with Client(gated.uri) as client, ThreadPoolExecutor(1) as pool:
        stream = client.submit("tree")
        read_tokens(stream, 4)
        waiting = pool.submit(next, stream)
        stream.close()
        assert isinstance(waiting.exception(5.0), Cancelled)
        with pytest.raises(Cancelled, match="closed"):
            stream.result()


def test_a_stream_that_had_ended_keeps_its_result_when_it_is_closed(server: FakeServer) -> None:
    with Client(server.uri) as client, client.submit("tree") as stream:
        assert stream.result().text == GOLDEN.text
        stream.close()
    assert stream.result().text == GOLDEN.text


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_client_is_closed_in_a_forked_child_and_goes_on_in_the_parent(gated: FakeServer) -> None:
    with Client(gated.uri) as client, client.submit("tree") as stream:
        read_tokens(stream, 4)
        child = os.fork()
        if child == 0:
            signal.alarm(5)
            os._exit(0 if is_left_behind(client, stream) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        gated.open_gate()
        assert stream.result().text == GOLDEN.text


def is_left_behind(client: Client, stream: Stream) -> bool:
    """Each use ends at once with an error."""
    num_errors = 0
    for use in (client.health, lambda: client.submit("oak"), stream.result):
        try:
            use()
        except PeerGone:
            num_errors += 1
    client.close()
    return num_errors == 3


def test_cancel_ends_the_stream_with_the_text_so_far(gated: FakeServer) -> None:
    with Client(gated.uri) as client, client.submit("tree") as stream:
        read_tokens(stream, 4)
        stream.cancel()
        assert list(stream) == []
        output = stream.result()
    assert (output.finish_reason, output.token_ids) == ("cancelled", GOLDEN.ids[:4])


def test_closing_the_client_cancels_what_is_open_and_wakes_its_readers(gated: FakeServer) -> None:
    client = Client(gated.uri)
    streams = [client.submit(f"tree{index}") for index in range(3)]
    with ThreadPoolExecutor(3) as pool:
        results = [pool.submit(stream.result) for stream in streams]
        eventually(lambda: len(gated.requests) == 3)
        client.close()
        for result in results:
            assert isinstance(result.exception(5.0), Cancelled)
    assert len(gated.cancelled) == 3
    client.close()
    with pytest.raises(PeerGone, match="closed"):
        client.submit("tree")
    with pytest.raises(PeerGone, match="closed"):
        client.health()


@pytest.mark.parametrize("socket", [None, "text-0", "text-1", "clients"])
def test_64_streams_of_64_threads_are_whole(tmp_path: Path, socket: str | None) -> None:
    words = [f"stream{index:02d}-" for index in range(64)]
    with FakeServer(tmp_path / "run", gate=5) as server, Client(server.uri) as client:
        with ThreadPoolExecutor(64) as pool:
            outputs = [pool.submit(client.generate, word) for word in words]
            eventually(lambda: len(server.requests) == 64)
            if socket is not None:
                server.replace(socket)
            server.open_gate()
            texts = [output.result(20.0).text for output in outputs]
        assert texts == [golden_of(TextPrompt(word)).text for word in words]
        eventually(lambda: server.requests == {})
    assert len(set(server.acknowledged)) == 64


def test_a_server_that_never_came_is_peer_gone_and_a_mute_one_a_timeout(tmp_path: Path) -> None:
    with FakeServer(tmp_path / "run") as server, Client(server.uri, limits=QUICK) as client:
        assert client.health().is_ready
        server.is_silent = True
        with pytest.raises(ChannelTimeout):
            client.generate("tree")
        with pytest.raises(ChannelTimeout):
            client.health(timeout_s=0.05)
    empty = tmp_path / "empty"
    empty.mkdir(mode=0o700)
    with Client(empty, limits=QUICK) as client:
        with pytest.raises(PeerGone):
            client.generate("tree")
        with pytest.raises(PeerGone):
            client.ps(timeout_s=0.05)


def test_addresses_that_cannot_be_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(PeerGone, match="no server"):
        Client(tmp_path / "nothing")
    for address in ("hybridgen://relative/path", ""):
        with pytest.raises(ConfigError, match="address"):
            Client(address)


def test_the_clients_thread_ends_with_the_client(server: FakeServer) -> None:
    before = threading.active_count()
    with Client(server.uri) as client:
        client.health()
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_in_vain_for_a_thread_that_failed(
    gated: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(gated.uri)
    stream = client.submit("tree")
    read_tokens(stream, 4)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("hybridgen.client.session.Session.received", fail)
    with pytest.raises(HybridGenError, match="thread has ended"):
        client.health()
    with pytest.raises(HybridGenError, match="thread has ended"):
        stream.result()
    with pytest.raises(PeerGone, match="closed"):
        client.submit("tree")
    client.close()
