"""Whether there are samplers. They exchange no messages; the board and the supervisor tell."""

from __future__ import annotations

from hybridgen.errors import RestartBudgetSpent


class SamplerWatch:
    """Until somebody has looked, samplers are taken to be there."""

    def __init__(self) -> None:
        self._num_ready = 1
        self._is_given_up = False  # the last one that died is not replaced for now

    def note_ready(self, num_ready: int) -> None:
        """So many are ready now."""
        self._num_ready = num_ready
        if num_ready:
            self._is_given_up = False

    def died(self, *, is_final: bool) -> None:
        """One ended; ``is_final``: its replacement has to wait for the restart budget."""
        self._is_given_up = self._is_given_up or is_final

    @property
    def is_missing(self) -> bool:
        """Nobody samples now."""
        return self._num_ready == 0

    def check(self) -> None:
        """Somebody samples, or will soon.

        Raises:
            RestartBudgetSpent: nobody.
        """
        if self.is_missing and self._is_given_up:
            raise RestartBudgetSpent(
                "no sampler is left", value=0, remedy="See the log for why it kept dying"
            )
