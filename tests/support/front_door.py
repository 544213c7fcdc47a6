"""The application over a scripted backend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from hybridgen.server.app import App
from hybridgen.server.auth import ApiKeys
from hybridgen.server.hosts import AllowedHosts
from hybridgen.server.limits import ServerLimits
from hybridgen.server.origins import AllowedOrigins
from hybridgen.server.request_limits import RequestLimits
from hybridgen.server.served_models import ServedModels
from hybridgen.text.vocabulary import Vocabulary
from tests.support.scripted_backend import ScriptedBackend

MODELS = ServedModels(names=("demo", "org/demo-8b"), created=1_700_000_000, max_model_len=2048)
VOCABULARY = Vocabulary([bytes([i]) for i in range(256)])
NOW_S = 1_800_000_000.0
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}
COMPLETION = {"model": "demo", "prompt": "Once"}


def make_app(
    backend: ScriptedBackend,
    *,
    keys: ApiKeys | None = None,
    hosts: AllowedHosts | None = None,
    origins: AllowedOrigins | None = None,
    has_console: bool = False,
    has_queue: Callable[[], bool] = lambda: False,
    **limits: Any,
) -> App:
    """An application with small limits where ``limits`` says so."""
    request = RequestLimits(max_model_len=2048, vocab_size=256)
    return App(
        backend,
        MODELS,
        VOCABULARY,
        keys=keys,
        hosts=hosts,
        origins=origins,
        has_console=has_console,
        has_queue=has_queue,
        limits=ServerLimits(request=request, **limits),
        unix_time=lambda: NOW_S,
    )


def play(scene: Coroutine[Any, Any, None], timeout_s: float = 10.0) -> None:
    """Run a test's coroutine on a loop of its own."""

    async def main() -> None:
        async with asyncio.timeout(timeout_s):
            await scene

    asyncio.run(main())
