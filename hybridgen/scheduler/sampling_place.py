"""Where tokens are chosen: by the samplers or on the device, whichever made steps shorter."""

from __future__ import annotations

from typing import Literal

#: Steps of one place before the other is tried again, and of such a trial.
NUM_SETTLED = 512
NUM_TRIAL = 16
#: A trial ends undecided after so many steps, if most of them were not such that can be compared.
MAX_TRIAL = 16 * NUM_TRIAL
#: The first steps in a place still carry what the other left behind.
NUM_SKIPPED = 3
#: Share of a new measurement in the mean.
_SHARE = 0.1
#: The samplers keep the work unless the device is shorter by this share: their time is free.
_MARGIN = 0.005


class _Bucket:
    """Batches of about one size."""

    def __init__(self) -> None:
        self.mean_ns = {False: 0.0, True: 0.0}
        self.is_on_device = False
        self.is_trial = False
        self.num_steps = 0  # measured
        self.num_asked = 0  # planned

    def wants_device(self) -> bool:
        self.num_asked += 1
        if self.is_trial and self.num_asked > MAX_TRIAL:
            self._turn_to(not self.is_on_device, is_trial=False)
        return self.is_on_device

    def note(self, is_on_device: bool, step_ns: int) -> None:
        if is_on_device != self.is_on_device:
            return  # enqueued before the last change
        self.num_steps += 1
        if self.num_steps <= NUM_SKIPPED:
            return
        mean_ns = self.mean_ns[is_on_device]
        self.mean_ns[is_on_device] = mean_ns + _SHARE * (step_ns - mean_ns) if mean_ns else step_ns
        if self.num_steps >= (NUM_TRIAL if self.is_trial else NUM_SETTLED):
            self._decide()

    def _decide(self) -> None:
        """After a trial, settle in the better place; after a long stay, try the other."""
        samplers_ns, device_ns = self.mean_ns[False], self.mean_ns[True]
        is_better_there = bool(device_ns) and device_ns < samplers_ns * (1.0 - _MARGIN)
        is_trial = not self.is_trial
        self._turn_to(not self.is_on_device if is_trial else is_better_there, is_trial=is_trial)

    def _turn_to(self, is_on_device: bool, *, is_trial: bool) -> None:
        self.is_on_device, self.is_trial = is_on_device, is_trial
        self.num_steps = self.num_asked = 0


class SamplingPlace:
    """Pure: decides for each step, and learns from how long steps took.

    Args:
        mode: ``true`` and ``false`` decide; ``auto`` measures, for each power of two of rows.
    """

    def __init__(self, mode: Literal["true", "false", "auto"]) -> None:
        self._mode = mode
        self._buckets: dict[int, _Bucket] = {}

    def wants_device(self, num_rows: int) -> bool:
        """Whether the device should choose the tokens of the next step."""
        if self._mode != "auto":
            return self._mode == "true"
        return self._bucket(num_rows).wants_device()

    def note(self, num_rows: int, is_on_device: bool, step_ns: int) -> None:
        """A step of so many rows took so long, from the end of the step before to its own.

        Args:
            num_rows: rows of the step.
            is_on_device: where its tokens were chosen.
            step_ns: nothing but decoding happened in this time.
        """
        if self._mode == "auto":
            self._bucket(num_rows).note(is_on_device, step_ns)

    def _bucket(self, num_rows: int) -> _Bucket:
        return self._buckets.setdefault(num_rows.bit_length(), _Bucket())
