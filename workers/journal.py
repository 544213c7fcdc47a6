"""What the coscheduler tells about requests: a log line, histograms, spans; and how the tree is."""

from __future__ import annotations

import logging
import os

from hybridgen.clock import monotonic_s
from hybridgen.config import Config
from hybridgen.ipc.board import Board, Role
from hybridgen.scheduler.activity import Activity, ActivityLog
from hybridgen.scheduler.request_record import FinishedRequest
from hybridgen.scheduler.request_spans import RequestSpans, wants_spans
from hybridgen.workers.lifecycle import WorkerContext

logger = logging.getLogger(__name__)


class Journal:
    """Off the path of any request: called when one has ended, and ten times a second at most."""

    def __init__(self, context: WorkerContext, board: Board) -> None:
        spec = context.spec
        config: Config = spec.config
        self._board = board
        self._histograms = context.line.histograms()
        self._gpu = spec.worker_names.index("gpu-0")
        prefix = f"{Role.DETOKENIZER.label}-"
        self._senders = [i for i, name in enumerate(spec.worker_names) if name.startswith(prefix)]
        self._activity = ActivityLog(monotonic_s())
        self._spans = None
        if wants_spans(config.server.enable_tracing, os.environ):
            self._spans = RequestSpans.to_collector(config.model.served_model_name)

    def finished(self, request: FinishedRequest) -> None:
        """A request is over."""
        if logger.isEnabledFor(logging.INFO):
            extra = {"request_id": request.request_id.hex()}
            if request.trace is not None:
                extra |= {"trace_id": request.trace.trace_id, "span_id": request.trace.parent_id}
            logger.info("%s", request, extra=extra)
        for stage, seconds in request.times.stage_seconds().items():
            self._histograms[stage].observe_s(seconds)
        self._histograms["e2e"].observe_s(request.times.total_s)
        if request.num_prompt_tokens:
            self._histograms["prompt_tokens"].observe(request.num_prompt_tokens)
            self._histograms["generated_tokens"].observe(request.num_tokens)
        if self._spans is not None:
            self._spans.record(request)

    def look(self, counters: dict[str, int]) -> None:
        """Every few seconds of work, say how the tree is.

        Args:
            counters: those of the coscheduler's own line.
        """
        now_s = monotonic_s()
        if not self._activity.is_due(now_s):
            return
        blocks = counters["blocks"]
        now = Activity(
            num_running=counters["running"],
            num_waiting=counters["waiting"],
            num_prefilled=self._count(self._gpu, "prefill_tokens"),
            num_sent=sum(self._count(line, "sent_tokens") for line in self._senders),
            kv_usage=1 - counters["free_blocks"] / blocks if blocks else 0.0,
        )
        text = self._activity.line(now, now_s)
        if text is not None:
            logger.info("%s", text)

    def close(self) -> None:
        """Let spans go out that wait."""
        if self._spans is not None:
            self._spans.close()

    def _count(self, line: int, counter: str) -> int:
        # A line that no process has claimed yet belongs to the supervisor's role.
        return self._board.snapshot(line).counters.get(counter, 0)
