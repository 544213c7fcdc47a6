"""What a chaos run is asked to do, and the tree that it is done to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from hybridgen.config import Config
from hybridgen.launch.chaos.own_tree import ANY_NUMBER
from hybridgen.launch.config_sources import config_from_options

MOCK = "mock"
STEP_US = 5000
#: Different requests that each stream asks in turn.
QUESTIONS_PER_STREAM = 2


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """For all scenarios of a run."""

    folder: Path
    """Logs and reports."""
    seed: int
    model: str = MOCK
    num_streams: int = 50
    num_kills: int | None = None
    """Instead of a scenario's own number."""
    max_s: float | None = None
    """A scenario ends after this, however many kills are left."""


def tree_config(
    options: Options, *, port: int | None = None, settings: Mapping[str, float] | None = None
) -> Config:
    """A tree that may die any number of times; a gateway only with a port."""
    door = {"num_gateways": 0} if port is None else {"num_gateways": 1, "port": port}
    return config_from_options(
        {
            "model": options.model,
            "mock_step_us": STEP_US,
            "num_samplers": 2,
            "num_detokenizers": 2,
            "num_tokenizers": 1,
            "num_cpu_threads": 2,
            "max_num_seqs": max(64, options.num_streams),
            "pool_restart_limit": ANY_NUMBER,
            "gpu_restart_limit": ANY_NUMBER,
            "coscheduler_restart_limit": ANY_NUMBER,
            "log_format": "json",
            "incident_dir": str(options.folder / "incidents"),
            **door,
            **(settings or {}),
        }
    )
