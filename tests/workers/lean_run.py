"""Runs a worker to its drain order and prints what it loaded: ``python -m … sampler``."""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path

from hybridgen.config import Config
from hybridgen.messages import DrainWorker
from tests.workers.workplace import Workplace

HEAVY = ("torch", "numpy", "transformers", "psutil")


def main(role: str) -> int:
    with (
        tempfile.TemporaryDirectory() as folder,
        Workplace(Path(folder) / "run", Config()) as place,
    ):
        context = place.context(f"{role}-0")
        place.order(context.name, DrainWorker())
        worker = importlib.import_module(f"hybridgen.workers.{role}")
        code: int = worker.run(context.spec, context.control)
        print(*(name for name in HEAVY if name in sys.modules))
        return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
