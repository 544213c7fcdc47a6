"""How fast weights come from a file to the device.

    python -m tools.bench_load [--gigabytes 4] [--quantize-weights 8] [--device cuda]

Makes a .hybridgen file of that size in a temporary folder and loads it as the gpu process does:
pinned to one CPU, with threads on the others. Once with the file dropped from the page cache
before, as far as the kernel does that, and twice from the page cache.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import torch

from hybridgen.config import Config, ModelSection
from hybridgen.formats.convert import load_weights
from hybridgen.formats.hybridgen_file import (
    SourceFacts,
    encode_file_header,
    file_metadata,
)
from hybridgen.formats.inspect import inspect_model
from hybridgen.formats.mock_model import mock_model
from hybridgen.formats.model_info import ModelInfo
from hybridgen.formats.tokenizer_spec import TokenType
from hybridgen.models.config import ModelConfig
from hybridgen.models.cuda.upload import MAX_THREADS
from hybridgen.models.cuda.weights import load_device_weights

CONFIG = Path(__file__).parent / "configs" / "llama-8b.json"
NUM_NUMBERS = 1 << 24
#: Of the numbers: what such a model computes stays finite.
SPREAD = 0.02


def main() -> int:
    """Write, load, print."""
    options = _parse()
    device = torch.device(options.device)
    cpus = os.sched_getaffinity(0)
    info = make_info(options.gigabytes * 1e9)
    print(f"torch {torch.__version__}, {min(MAX_THREADS, len(cpus))} threads", flush=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "model.hybridgen"
        num_bytes = write_model(info, path)
        os.sched_setaffinity(0, {min(cpus)})
        for place in ("disk", "page cache", "page cache"):
            if place == "disk":
                drop_from_page_cache(path)
            took_s = load(info.config, path, device, options.quantize_weights == 8, cpus)
            print(
                f"{num_bytes / 1e9:.2f} GB from the {place}, {options.quantize_weights} bit on "
                f"the device: {took_s:.2f} s, {num_bytes / took_s / 1e9:.2f} GB/s",
                flush=True,
            )
    return 0


def make_info(num_bytes: float) -> ModelInfo:
    """The 8B shape with so many layers that its weights take about ``num_bytes`` in bf16."""
    config = shape_of(CONFIG)
    small = msgspec.structs.replace(config, num_layers=1, vocab_size=32000)
    layer_bytes = 2 * (msgspec.structs.replace(small, num_layers=2).num_parameters)
    layer_bytes -= 2 * small.num_parameters
    num_layers = 1 + max(0, round((num_bytes - 2 * small.num_parameters) / layer_bytes))
    return info_of(msgspec.structs.replace(small, num_layers=num_layers))


def shape_of(path: Path) -> ModelConfig:
    """What a config.json describes."""
    section = ModelSection(model=str(path), load_format="dummy")
    return inspect_model(str(path), Config(model=section)).config


def info_of(config: ModelConfig) -> ModelInfo:
    """A model of that shape, with the mock model's tokenizer, filled up to its vocabulary."""
    mock = mock_model(Config())
    spec, num_tokens = mock.tokenizer, config.vocab_size
    num_more = num_tokens - len(spec.tokens)
    tokenizer = msgspec.structs.replace(
        spec,
        tokens=[*spec.tokens, *(f" w{number}" for number in range(num_more))],
        token_types=[*spec.token_types, *([int(TokenType.NORMAL)] * num_more)],
        vocab_size=num_tokens,
    )
    return msgspec.structs.replace(mock, kind="hybridgen", config=config, tokenizer=tokenizer)


def write_model(info: ModelInfo, path: Path) -> int:
    """The same random numbers over and over; bytes of the tensors."""
    metadata = file_metadata(info, "bfloat16", SourceFacts(name="bench"))
    numbers = torch.randn(NUM_NUMBERS, generator=torch.Generator().manual_seed(0))
    numbers = (numbers * SPREAD).bfloat16()
    stock = numbers.view(torch.uint8).numpy().data
    num_bytes = 2 * info.config.num_parameters
    with path.open("wb") as file:
        file.write(encode_file_header(info, "bfloat16", metadata))
        for start in range(0, num_bytes, len(stock)):
            file.write(stock[: num_bytes - start])
        file.flush()
        os.fsync(file.fileno())
    return num_bytes


def drop_from_page_cache(path: Path) -> None:
    """Advice: nothing happens where the file system keeps files in memory."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def load(
    config: ModelConfig, path: Path, device: torch.device, is_int8: bool, cpus: set[int]
) -> float:
    """Seconds from opening the file to the last weight in place."""
    if device.type == "cuda":
        torch.zeros(1, device=device)  # the context is no part of it
        torch.cuda.synchronize()
    started_s = time.perf_counter()
    weights = load_device_weights(
        config,
        load_weights(path),
        torch.bfloat16,
        device,
        lambda _: None,
        is_int8=is_int8,
        loading_cpus=cpus,
    )
    if device.type == "cuda":
        torch.cuda.synchronize()
    took_s = time.perf_counter() - started_s
    del weights
    return took_s


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--quantize-weights", type=int, default=16, choices=[16, 8])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--folder", help="where the temporary folder is made")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
