"""The proof that an idle tree can serve: one token, by the way that every request takes.

While requests run, their steps are the proof (``Health``). A tree that has rested for a while is
asked for a token of its own when somebody wants to know whether it is ready: through a tokenizer,
the gpu process, a sampler and a detokenizer. The question waits for it, a moment at most.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import msgspec

from hybridgen.clock import Clock
from hybridgen.messages import (
    AckFinished,
    ClientReply,
    HealthReport,
    RequestFinished,
    SubmitRequest,
)
from hybridgen.request import ID_BYTES, IdsPrompt, SamplingParams
from hybridgen.scheduler.outbox import Outbox
from hybridgen.scheduler.request_record import CANARY_CLIENT

#: A step so long ago proves nothing any more.
MAX_PROOF_AGE_S = 5.0
#: How long a question waits for the token.
WAIT_S = 2.0
#: A token that is not there by then is given up, so that another one is tried.
TIMEOUT_S = 10.0
_PARAMS = SamplingParams(temperature=0.0, max_tokens=1)


class Canary:
    """One token at a time; also a client, but one inside this process.

    Args:
        clock: seconds that never jump.
        outbox: takes the answers, and brings what is said to the client.
        submit: takes its request, acknowledge: its confirmation, as from any client.
        report: the present report, without a proof.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        outbox: Outbox,
        submit: Callable[[bytes, SubmitRequest], None],
        acknowledge: Callable[[bytes, AckFinished], None],
        report: Callable[[bytes], HealthReport],
    ) -> None:
        self._clock = clock
        self._outbox = outbox
        self._submit = submit
        self._acknowledge = acknowledge
        self._report = report
        self._asking: dict[tuple[bytes, bytes], float] = {}  # (client, question) → since when
        #: A token is on its way.
        self.is_out = False
        self._finished: list[RequestFinished] = []
        outbox.listeners[CANARY_CLIENT] = self._hear

    def ask(self, client_id: bytes, request_id: bytes, *, is_working: bool) -> None:
        """Answer at once, or where there is need of a token once it is there, or is late.

        While the tree is working its steps are the proof.
        """
        report = self._report(request_id)
        age_s = report.last_step_age_s
        is_proved = is_working or (age_s is not None and age_s <= MAX_PROOF_AGE_S)
        if not self.is_out and (is_proved or not report.is_ready):
            self._outbox.to_client(client_id, report)
            return
        self._asking.setdefault((client_id, request_id), self._clock())
        if self.is_out:
            return
        self.is_out = True
        order = SubmitRequest(
            request_id=secrets.token_bytes(ID_BYTES),
            prompt=IdsPrompt([0]),
            params=_PARAMS,
            timeout_s=TIMEOUT_S,
        )
        self._submit(CANARY_CLIENT, order)

    def step(self) -> None:
        """Answer what can be answered by now."""
        if not (self._finished or self._asking):
            return
        finished, self._finished = self._finished, []
        for final in finished:
            self._acknowledge(CANARY_CLIENT, AckFinished(final.request_id))
            self.is_out = False
            self._answer(self._asking, "" if final.error is None else final.error.code)
        now_s = self._clock()
        late = {asked: since for asked, since in self._asking.items() if now_s >= since + WAIT_S}
        if late:
            self._answer(late, f"no token within {WAIT_S:.0f} s")

    def next_s(self) -> float:
        """When ``step`` wants to be called next."""
        return min(self._asking.values(), default=float("inf")) + WAIT_S

    def _answer(self, asking: dict[tuple[bytes, bytes], float], failure: str) -> None:
        for client_id, request_id in list(asking):
            del self._asking[client_id, request_id]
            report = self._report(request_id)
            if failure and report.is_ready:
                status = f"not ready: {failure}"
                report = msgspec.structs.replace(report, is_ready=False, status=status)
            self._outbox.to_client(client_id, report)

    def _hear(self, message: ClientReply) -> None:
        if isinstance(message, RequestFinished):
            self._finished.append(message)
