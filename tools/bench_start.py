"""From `hybridgen serve` to ready, and to the first token, with weights from a file.

    python -m tools.bench_start [--model 13b] [--starts 2] [--folder /dev/shm]
    python -m tools.bench_start --model tiny --device cpu

Writes a ``.hybridgen`` file of that shape whose weights are the same random numbers over and over,
starts a tree from it so many times, and prints what each start took its time with. The file lies in
the page cache, as after the first start of a real one.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from hybridgen import Client, SamplingParams
from hybridgen.ipc.segment import SHM_DIR
from hybridgen.launch.config_sources import config_from_options
from hybridgen.launch.tree import start_tree
from hybridgen.models.config import ModelConfig
from tools.bench_device import CONFIGS
from tools.bench_load import info_of, shape_of, write_model

#: What a tree says of its start, as it stands in its log.
_SAID = re.compile(r"ready after .*|memory plan: .*|attention of prompts: .*|\[\d/\d\] .*")
_TINY = ModelConfig(
    architecture="llama", vocab_size=32_000, num_layers=2, hidden_size=256, intermediate_size=320,
    num_heads=4, num_kv_heads=2, head_dim=64, max_position=1024, eos_ids=[257],
)  # fmt: skip


def main() -> int:
    """Write, start, print."""
    options = _parse()
    config = _TINY if options.model == "tiny" else shape_of(CONFIGS / f"llama-{options.model}.json")
    folder = options.folder or place_for(2 * config.num_parameters)
    with tempfile.TemporaryDirectory(prefix="hybridgen-bench-", dir=folder) as made:
        path, began_s = Path(made) / "model.hybridgen", time.perf_counter()
        num_bytes = write_model(info_of(config), path)
        took_s = time.perf_counter() - began_s
        print(f"{path}: {num_bytes / 1e9:.1f} GB written in {took_s:.1f} s", flush=True)
        for number in range(1, options.starts + 1):
            measure(path, number, options)
    return 0


def place_for(num_bytes: int) -> str:
    """Memory where there is room for it twice, else the usual folder."""
    has_room = SHM_DIR.is_dir() and shutil.disk_usage(SHM_DIR).free > 2 * num_bytes
    return str(SHM_DIR) if has_room else tempfile.gettempdir()


def measure(path: Path, number: int, options: argparse.Namespace) -> None:
    """One start and one token."""
    config = config_from_options(
        {
            "model": str(path),
            "device": options.device,
            "max_num_seqs": 64,
            "quantize_weights": options.quantize_weights,
            "log_format": "text",
        }
    )
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        began_s = time.perf_counter()
        handle = start_tree(config, quiet=False, log_fd=log.fileno())
        ready_s = time.perf_counter() - began_s
        try:
            with Client(handle.uri) as client:
                client.generate([1, 2, 3], SamplingParams(temperature=0.0, max_tokens=1))
            token_s = time.perf_counter() - began_s
        finally:
            handle.stop()
        print(f"start {number}: ready after {ready_s:.2f} s, a token after {token_s:.2f} s")
        log.seek(0)
        for said in filter(None, map(_SAID.search, log)):
            print(f"    {said[0]}", flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="13b", choices=["13b", "8b", "tiny"])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--quantize-weights", type=int, default=16, choices=[16, 8])
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--folder", help="where a temporary folder is made")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
