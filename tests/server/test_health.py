from __future__ import annotations

import asyncio

import msgspec
import pytest

from hybridgen.errors import ChannelTimeout
from hybridgen.messages import HealthReport
from hybridgen.server.health import Health
from hybridgen.server.refusal import Refusal
from tests.support.asgi_driver import Visit, ask
from tests.support.front_door import make_app, play
from tests.support.scripted_backend import LOADING, READY, ScriptedBackend


def test_ready_is_proved_by_the_tree_each_time() -> None:
    async def scene() -> None:
        backend = ScriptedBackend()
        app = make_app(backend)
        for path in ("/health", "/health/ready"):
            visit = await ask(app, "GET", path)
            assert visit.status == 200
            assert visit.json["status"] == "ready"
            assert visit.json["num_running"] == 1
            assert "request_id" not in visit.json
            assert visit.headers["cache-control"] == "no-store"
        assert backend.num_health_questions == 2
        backend.report = HealthReport(
            request_id=b"r", is_ready=False, status="not ready: no step for 12 s"
        )
        visit = await ask(app, "GET", "/health")
        assert visit.status == 503
        assert visit.json["status"] == "not ready: no step for 12 s"
        assert visit.headers["retry-after"] == "1"

    play(scene())


def test_a_silent_tree_is_not_ready_and_its_error_is_not_shown() -> None:
    async def scene() -> None:
        backend = ScriptedBackend()
        backend.report = ChannelTimeout("nothing at ipc:///secret/path")
        visit = await ask(make_app(backend), "GET", "/health/ready")
        assert visit.status == 503
        assert visit.json == {"status": "not ready: channel_timeout", "is_ready": False}

    play(scene())


def test_a_tree_that_loads_says_how_far_it_is() -> None:
    async def scene() -> None:
        backend = ScriptedBackend()
        shares = [0.426, 0.9999, 1.0]
        health = Health(backend, 1.0, lambda: shares[0])
        for status in ("loading 43 %", "loading 99 %"):
            reply = await health.ready()
            assert reply.status == 503
            assert msgspec.json.decode(reply.body)["status"] == status
            with pytest.raises(Refusal, match=status) as caught:
                await health.check_started()
            assert dict(caught.value.headers)[b"retry-after"] == b"1"
            shares.pop(0)
        assert backend.num_health_questions == 0
        await health.check_started()
        assert (await health.ready()).status == 200

    play(scene())


def test_live_asks_nobody() -> None:
    async def scene() -> None:
        backend = ScriptedBackend()
        backend.report = ChannelTimeout("nothing")
        visit = await ask(make_app(backend), "GET", "/health/live")
        assert visit.status == 200
        assert backend.num_health_questions == 0

    play(scene())


def test_started_stays_started() -> None:
    async def scene() -> None:
        backend = ScriptedBackend()
        backend.report = LOADING
        app = make_app(backend)
        visit = await ask(app, "GET", "/health/startup")
        assert visit.status == 503
        assert visit.json["status"] == "loading"
        backend.report = READY
        assert (await ask(app, "GET", "/health/startup")).status == 200
        backend.report = LOADING
        assert (await ask(app, "GET", "/health/startup")).status == 200
        assert (await ask(app, "GET", "/health/ready")).status == 503

    play(scene())


def test_a_draining_server_is_live_but_not_ready() -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend())
        app.start_draining()
        visit = await ask(app, "GET", "/health")
        assert visit.status == 503
        assert visit.json["status"] == "draining"
        assert (await ask(app, "GET", "/health/live")).status == 200

    play(scene())


def test_simultaneous_questions_are_one_and_a_leaving_asker_spoils_none() -> None:
    async def scene() -> None:
        backend = ScriptedBackend()
        backend.health_gate = asyncio.Event()
        app = make_app(backend)
        visits = [Visit(app, "GET", "/health").begin() for _ in range(50)]
        await asyncio.sleep(0.01)
        assert backend.num_health_questions == 1
        first = visits[0].task
        assert first is not None
        first.cancel()
        backend.health_gate.set()
        for visit in visits[1:]:
            await visit.done()
            assert visit.status == 200

    play(scene())
