"""How fast a model is converted, beside a plain copy of the same file.

    python -m tools.bench_convert [--gigabytes 1] [--element F16] [--dtype bfloat16] [--repeats 2]

Makes a GGUF file of about that size in a temporary folder, copies it, and converts it; both end
when the data is on the disk (fsync). Rates and CPU seconds count the source's bytes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from hybridgen.config import Config
from hybridgen.formats.convert import convert_model
from hybridgen.formats.inspect import inspect_model
from tools.make_tiny_model import byte_vocabulary

HIDDEN, INNER, NUM_HEADS, VOCAB = 2048, 5632, 16, 32_000
#: Where a block's float16 scales stand, and bytes of a block and its elements.
BLOCKS: dict[str, tuple[tuple[int, ...], int, int]] = {
    "Q8_0": ((0,), 34, 32),
    "Q4_0": ((0,), 18, 32),
    "Q4_1": ((0, 2), 20, 32),
    "Q5_0": ((0,), 22, 32),
    "Q5_1": ((0, 2), 24, 32),
    "Q2_K": ((80, 82), 84, 256),
    "Q3_K": ((108,), 110, 256),
    "Q4_K": ((0, 2), 144, 256),
    "Q5_K": ((0, 2), 176, 256),
    "Q6_K": ((208,), 210, 256),
}


def main() -> int:
    """Make, copy, convert, print."""
    options = _parse()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        source = folder / "model.gguf"
        write_gguf(source, options.element, options.gigabytes * 1e9)
        size = source.stat().st_size
        info = inspect_model(str(source), Config())
        bits = " INT8" if options.quantize_weights == 8 else ""
        for _ in range(options.repeats):
            copy_s = timed(lambda: copy(source, folder / "copy"))
            started_s, started_cpu_s = time.perf_counter(), time.process_time()
            convert_model(
                info,
                options.dtype,
                folder / "out.hybridgen",
                is_int8=options.quantize_weights == 8,
                is_replacing=True,
            )
            convert_s = time.perf_counter() - started_s
            cpu_s = time.process_time() - started_cpu_s
            print(
                f"{size / 1e9:.2f} GB: copy {size / copy_s / 1e9:.2f} GB/s, "
                f"{options.element} -> {options.dtype}{bits} {size / convert_s / 1e9:.2f} GB/s, "
                f"ratio {copy_s / convert_s:.2f}, {cpu_s / size * 1e9:.2f} CPU s/GB, "
                f"{len(os.sched_getaffinity(0))} CPUs",
                flush=True,
            )
            (folder / "copy").unlink()
    return 0


def timed(work: Any) -> float:
    """Seconds that ``work()`` takes."""
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def copy(source: Path, target: Path) -> None:
    """Read and write, so that both do the same: no reflink, no copy inside the kernel."""
    with source.open("rb") as read, target.open("wb") as write:
        piece = bytearray(1 << 22)
        while count := read.readinto(piece):
            write.write(memoryview(piece)[:count])
        write.flush()
        os.fsync(write.fileno())


def write_gguf(path: Path, element: str, num_bytes: float) -> None:
    """A Llama whose layers are all alike, of about ``num_bytes``."""
    from gguf import GGMLQuantizationType, GGUFWriter

    kind = GGMLQuantizationType[element]
    rng = np.random.default_rng(0)
    shapes = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (HIDDEN, HIDDEN),
        "attn_v": (HIDDEN, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (INNER, HIDDEN),
        "ffn_up": (INNER, HIDDEN),
        "ffn_down": (HIDDEN, INNER),
    }
    layer = {name: matrix(rng, element, shape) for name, shape in shapes.items()}
    embedding = matrix(rng, element, (VOCAB, HIDDEN))
    layer_bytes = sum(data.nbytes for data in layer.values())
    num_layers = max(1, round((num_bytes - 2 * embedding.nbytes) / layer_bytes))
    norm = np.ones(HIDDEN, dtype=np.float32)
    writer = GGUFWriter(path, "llama")
    _write_keys(writer, num_layers)
    for top in ("token_embd", "output"):
        writer.add_tensor(f"{top}.weight", embedding, raw_dtype=kind)
    writer.add_tensor("output_norm.weight", norm)
    for number in range(num_layers):
        for name, data in layer.items():
            writer.add_tensor(f"blk.{number}.{name}.weight", data, raw_dtype=kind)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{number}.{name}.weight", norm)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_keys(writer: Any, num_layers: int) -> None:
    tokens, merges = byte_vocabulary()
    tokens += [f"<{number}>" for number in range(VOCAB - len(tokens))]
    writer.add_block_count(num_layers)
    writer.add_context_length(2048)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(NUM_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(2)


def matrix(rng: np.random.Generator, element: str, shape: tuple[int, int]) -> Any:
    """Random elements as they are stored: floats, or bytes of blocks with small scales."""
    if element == "F32":
        return rng.standard_normal(shape, dtype=np.float32)
    if element == "F16":
        return rng.standard_normal(shape, dtype=np.float32).astype(np.float16)
    if element == "BF16":
        wide = rng.standard_normal(shape, dtype=np.float32).view(np.uint32)
        return (wide >> 16).astype(np.uint16).view(np.uint8)
    places, block_bytes, block_size = BLOCKS[element]
    blocks = rng.integers(0, 256, (shape[0], shape[1] // block_size, block_bytes), dtype=np.uint8)
    for place in places:
        blocks[..., place : place + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    return blocks.reshape(shape[0], -1)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--element", default="F16", choices=["F32", "F16", "BF16", *BLOCKS])
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--quantize-weights", type=int, default=16, choices=[16, 8])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--folder", help="where the temporary folder is made")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
