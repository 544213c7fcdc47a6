"""Many prompts at once, results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from hybridgen.client.client import Client
from hybridgen.client.sink import Completion
from hybridgen.clock import monotonic_s
from hybridgen.errors import HybridGenError, InternalError, QueueFull
from hybridgen.request import Prompt, RequestOutput, SamplingParams

_DEFAULT_PAUSE_S = 0.1
_MAX_PAUSE_S = 5.0


class Batch:
    """Keeps at most ``max_open`` of its requests open at a server that others may use too.

    Args:
        client: where to.
        work: prompt and parameters of each request.
        max_open: enough to keep the server's batch full, below what its backlog takes.
    """

    def __init__(
        self, client: Client, work: Sequence[tuple[Prompt, SamplingParams]], max_open: int
    ) -> None:
        self._client = client
        self._work = work
        self._max_open = max_open
        self._pending = deque(range(len(work)))
        self._open: dict[int, bytes] = {}
        self._outputs: dict[int, RequestOutput] = {}
        self._done: SimpleQueue[Completion] = SimpleQueue()
        self._resume_at_s = 0.0

    def run(self) -> list[RequestOutput]:
        """The finished requests, in the order of ``work``.

        A full server is waited for. Any other error, or an interrupt, cancels the rest.

        Raises:
            HybridGenError: of the first request that failed; field ``prompt_index`` names it.
        """
        try:
            while len(self._outputs) < len(self._work):
                self._fill()
                self._take_one()
        finally:
            for request_id in self._open.values():
                self._client.abandon(request_id)
        return [self._outputs[index] for index in range(len(self._work))]

    def _fill(self) -> None:
        while (
            self._pending
            and len(self._open) < self._max_open
            and monotonic_s() >= self._resume_at_s
        ):
            index = self._pending.popleft()
            prompt, params = self._work[index]
            completion = Completion(prompt, self._done, index)
            self._open[index] = self._client.submit_to(completion, prompt, params)

    def _take_one(self) -> None:
        """Wait for the next request that ends, or until new ones may be sent."""
        pause_s = self._resume_at_s - monotonic_s()
        is_held_back = bool(self._pending) and pause_s > 0
        try:
            completion = self._done.get(timeout=pause_s if is_held_back else None)
        except Empty:
            return
        del self._open[completion.index]
        try:
            self._outputs[completion.index] = completion.result()
        except QueueFull as error:
            self._pending.appendleft(completion.index)
            self._resume_at_s = monotonic_s() + _pause_s(error)
        except HybridGenError as error:
            error.fields["prompt_index"] = completion.index
            raise


def _pause_s(error: QueueFull) -> float:
    """How long the server asks to stay away, within reason."""
    wanted_s = error.fields.get("retry_after_s", _DEFAULT_PAUSE_S)
    if not isinstance(wanted_s, int | float):
        raise InternalError("retry_after_s is not a number", value=str(wanted_s)) from error
    return min(max(float(wanted_s), 0.001), _MAX_PAUSE_S)
