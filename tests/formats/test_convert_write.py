"""Conversions that are cut short, and what they take of memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from hybridgen.config import Config
from hybridgen.errors import BadModelFile, ConfigError, UnsupportedModel
from hybridgen.formats import convert_rows, convert_write
from hybridgen.formats.convert import convert_model, load_weights, prepare_weights
from hybridgen.formats.gguf_types import READABLE
from hybridgen.formats.inspect import inspect_model
from hybridgen.formats.model_info import ModelInfo
from hybridgen.formats.stored_rows import RowReader, stored_rows
from hybridgen.formats.verify import verify_file
from tests.formats.fused import fused
from tests.formats.requantized import requantized
from tools.make_tiny_model import TinyModel, make_tiny_model

# Converts for ever, and says when the first piece is written.
ENDLESS = """
import os, sys, time
from pathlib import Path
from hybridgen.formats import convert_write
from hybridgen.launch.cli import run
put = convert_write._Writer._put
def slow_put(self, *arguments):
    count = put(self, *arguments)
    os.write(1, b"writing\\n")
    time.sleep(0.2)
    return count
convert_write._Writer._put = slow_put
sys.exit(run(["convert", sys.argv[1], "--output", sys.argv[2]]))
"""
# Prints by how much two conversions made the peak of memory grow, in bytes.
PEAK = """
import sys
from pathlib import Path
from hybridgen.config import Config
from hybridgen.formats.convert import convert_model
from hybridgen.formats.inspect import inspect_model
def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
before = peak()
for number, source in enumerate(sys.argv[2:]):
    convert_model(inspect_model(source, Config()), "bfloat16", Path(f"{sys.argv[1]}.{number}"))
print(peak() - before)
"""


def inspected(path: Path) -> ModelInfo:
    return inspect_model(str(path), Config())


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_conversion_leaves_nothing(
    signum: signal.Signals, tiny: TinyModel, tmp_path: Path
):
    with start(ENDLESS, tiny.gguf, tmp_path / "x.hybridgen") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "writing\n"
        child.send_signal(signum)
        _, errors = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "nothing was written" in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("num_works", [0, 1, 2, 5])
def test_a_conversion_may_be_interrupted_while_it_deals_out_the_work(
    num_works: int, tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    submit, works = ThreadPoolExecutor.submit, []

    def interrupted(pool: ThreadPoolExecutor, *work: Any) -> Future[Any]:
        if len(works) == num_works:
            raise KeyboardInterrupt
        works.append(submit(pool, *work))
        return works[-1]

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert_model(inspected(tiny.gguf), "bfloat16", tmp_path / "x.hybridgen")
    assert all(work.done() for work in works)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_conversion_leaves_is_gone_after_the_next(tiny: TinyModel, tmp_path: Path):
    path = tmp_path / "x.hybridgen"
    with start(ENDLESS, tiny.gguf, path) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.kill()
        child.communicate(timeout=60)
    assert not path.exists()
    assert len(list(tmp_path.iterdir())) == 1
    verify_file(convert_model(inspected(tiny.gguf), "bfloat16", path))
    assert list(tmp_path.iterdir()) == [path]


def test_memory_does_not_grow_with_the_tensors(tmp_path: Path):
    """1.5 times the largest tensor and 500 MiB may be taken, of which torch takes 200 or 300."""
    made = make_tiny_model(
        tmp_path, num_hidden_layers=1, hidden_size=1024, intermediate_size=12_288
    )
    number = gguf.GGMLQuantizationType.Q4_0
    small = tmp_path / "small.gguf"
    requantized(
        made, small, lambda rows: np.zeros((len(rows), rows.shape[1] // 32 * 18), np.uint8), number
    )
    with start(PEAK, tmp_path / "x.hybridgen", made.gguf, made.folder, small) as child:
        output, errors = child.communicate(timeout=100)
    assert child.returncode == 0, errors
    largest = 2 * 12_288 * 1024 * 4
    assert int(output) < largest // 2


def test_the_first_failure_of_a_thread_ends_all(
    tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def broken(_reader: Any, rows: Any, _begin: int, _end: int, _dtype: Any) -> torch.Tensor:
        raise BadModelFile("broken", field=rows.name)

    monkeypatch.setattr(convert_write, "read_floats", broken)
    with pytest.raises(BadModelFile, match="broken"):
        convert_model(inspected(tiny.gguf), "bfloat16", tmp_path / "x.hybridgen")
    assert list(tmp_path.iterdir()) == []
    assert not [thread for thread in threading.enumerate() if "convert" in thread.name]


def test_what_is_written_goes_to_the_disk_meanwhile(
    tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """And a disk that fails then is an error, though later calls tell nothing of it."""
    is_asked = threading.Event()

    def full(_fd: int) -> None:
        is_asked.set()
        raise OSError(28, "No space left on device")

    def waiting(*arguments: Any) -> torch.Tensor:
        assert is_asked.wait(10)
        return convert_rows.read_floats(*arguments)

    monkeypatch.setattr(os, "fdatasync", full)
    monkeypatch.setattr(convert_write, "read_floats", waiting)
    with pytest.raises(ConfigError, match="no space"):
        convert_model(inspected(tiny.gguf), "bfloat16", tmp_path / "x.hybridgen")
    assert list(tmp_path.iterdir()) == []
    assert not [thread for thread in threading.enumerate() if "convert" in thread.name]


@pytest.mark.parametrize("num_elements", [1, 64, 1000])
def test_the_size_of_the_pieces_does_not_matter(
    num_elements: int, tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(convert_rows, "CHUNK_ELEMENTS", num_elements)
    for source in (tiny.gguf, tiny.folder):
        path = convert_model(inspected(source), "float32", tmp_path / f"{source.stem}.hybridgen")
        loaded = load_weights(path)
        for name, values in fused(tiny.weights).items():
            assert np.array_equal(loaded[name].numpy(), values), name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_dtypes_are_made_from_a_file_of_ours(dtype: Any, tiny: TinyModel, tmp_path: Path):
    first = convert_model(inspected(tiny.folder), "float32", tmp_path / "a.hybridgen")
    second = convert_model(inspected(first), dtype, tmp_path / "b.hybridgen")
    third = convert_model(inspected(tiny.folder), dtype, tmp_path / "c.hybridgen")
    found, expected = load_weights(second), load_weights(third)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_quantized_file_can_be_made_into_floats_again(tiny: TinyModel, tmp_path: Path):
    small = convert_model(inspected(tiny.folder), "float32", tmp_path / "a.hybridgen", is_int8=True)
    whole = load_weights(convert_model(inspected(small), "float32", tmp_path / "b.hybridgen"))
    stored = load_weights(small)
    assert not whole.int8
    assert all(torch.equal(whole[name], stored[name]) for name in stored)


def test_weights_that_float16_cannot_hold_are_refused(tmp_path: Path):
    from safetensors.numpy import save_file

    made = make_tiny_model(tmp_path, num_hidden_layers=1)
    made.weights["model.norm.weight"][3] = 1e6
    save_file(made.weights, made.folder / "model.safetensors")
    with pytest.raises(UnsupportedModel, match="too large") as caught:
        convert_model(inspected(made.folder), "float16", tmp_path / "x.hybridgen")
    assert caught.value.fields["tensor"] == "model.norm.weight"
    convert_model(inspected(made.folder), "bfloat16", tmp_path / "x.hybridgen")


def test_a_bias_in_blocks_is_refused_where_its_elements_change_places(tmp_path: Path):
    made = make_tiny_model(tmp_path, num_hidden_layers=1, attention_bias=True)
    content, name = bytearray(made.gguf.read_bytes()), b"blk.0.attn_q.bias"
    place = content.index(name) + len(name) + 4 + 8  # after the number of dimensions, and one
    assert content[place] == gguf.GGMLQuantizationType.F32
    content[place] = gguf.GGMLQuantizationType.Q8_0
    made.gguf.write_bytes(content)
    with pytest.raises(UnsupportedModel, match=r"attn_q\.bias") as caught:
        convert_model(inspected(made.gguf), "bfloat16", tmp_path / "x.hybridgen")
    assert (caught.value.fields["value"], caught.value.fields["limit"]) == (
        "Q8_0",
        "F32, F16, BF16",
    )


def test_a_source_that_shrinks_meanwhile_is_a_typed_error(tmp_path: Path):
    made = make_tiny_model(tmp_path, num_hidden_layers=1)
    rows = stored_rows(inspected(made.gguf))
    reader = RowReader(rows)
    try:
        with made.gguf.open("r+b") as file:
            file.truncate(made.gguf.stat().st_size // 2)
        with pytest.raises(BadModelFile, match="cut off"):
            reader.read(rows["lm_head.weight"][0], 0, 200)
    finally:
        reader.close()


def test_threads_may_run_elsewhere_than_their_process(
    tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    moved: list[set[int]] = []
    monkeypatch.setattr(convert_write, "move_thread", moved.append)
    prepare_weights(inspected(tiny.gguf), "bfloat16", tmp_path, cpus=[0, 1, 2])
    assert moved
    assert all(cpus == {0, 1, 2} for cpus in moved)


def test_torch_has_its_threads_again_afterwards(tiny: TinyModel, tmp_path: Path):
    before = torch.get_num_threads()
    convert_model(inspected(tiny.gguf), "bfloat16", tmp_path / "x.hybridgen")
    assert torch.get_num_threads() == before


def test_readable_elements_are_those_that_the_library_dequantizes():
    import gguf.quants

    known = {kind.name for kind in gguf.quants._type_traits}
    assert known | {"F32", "F16"} == READABLE
