"""What the gateway counts, on its board line, and the page that shows every line of the board."""

from __future__ import annotations

from hybridgen.config import Config
from hybridgen.ipc.board import COUNTER_NAMES, Board, BoardLine, Role
from hybridgen.messages import WorkerSpec
from hybridgen.server.board_reading import BoardReader
from hybridgen.server.counters import Counters
from hybridgen.server.metrics_page import MetricsPage
from hybridgen.server.routing import Route


class GatewayAccount:
    """Copies the application's counters to the board: once a second, and when somebody reads.

    Args:
        spec: of this process.
        board: of the tree; line: this process's own on it.
        counters: the application's.
    """

    def __init__(self, spec: WorkerSpec, board: Board, line: BoardLine, counters: Counters) -> None:
        self._config: Config = spec.config
        self._line = line
        self._counters = counters
        self._num_shown = 0
        self._reader = BoardReader(board, spec.worker_names)

    def routes(self) -> list[Route]:
        """The metrics page, unless it is not wanted."""
        http = self._config.http
        if not http.enable_metrics:
            return []
        page = MetricsPage(
            self._reader,
            model=self._config.model.served_model_name,
            device=self._config.device.device,
            refresh=self._publish,
        )
        return [page.route(is_open=http.metrics_without_key)]

    def look(self) -> None:
        """Once a second: what counters alone do not tell is how they move."""
        self._publish()
        self._reader.look()

    def _publish(self) -> None:
        num_requests = self._counters.requests
        self._line.tick(num_requests - self._num_shown)
        self._num_shown = num_requests
        for name in COUNTER_NAMES[Role.GATEWAY]:
            self._line.set(name, getattr(self._counters, name))
