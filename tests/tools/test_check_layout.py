from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_layout import check_file, source_files


def breaches(root: Path, name: str, text: str) -> list[str]:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return [breach.rule for breach in check_file(path, root)]


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("launch/a.py", "x = 1\n" * 401, "file-length"),
        ("launch/a.py", "def f():\n" + "    x = 1\n" * 60, "function-length"),
        ("launch/utils.py", "", "file-name"),
        ("hybridgen/worker_helpers.py", "", "file-name"),
        ("hybridgen/misc/a.py", "", "file-name"),
        ("workers/a.py", "import torch\n", "import-place"),
        ("workers/a.py", "def f():\n    from torch.nn import Linear\n", "import-place"),
        ("hybridgen/models/config.py", "import torch\n", "import-place"),
        ("launch/a.py", "import zmq\n", "import-place"),
        ("workers/a.py", "import psutil\n", "import-place"),
        ("hybridgen/a.py", "import posix_ipc\n", "import-place"),
        ("hybridgen/a.py", "import pickle\n", "banned-import"),
        ("hybridgen/a.py", "from multiprocessing import Process\n", "banned-import"),
        ("hybridgen/a.py", "eval('1')\n", "banned-call"),
        ("hybridgen/models/a.py", "import torch\ntorch.load('x')\n", "banned-call"),
        ("launch/a.py", "import os\nos.fork()\n", "banned-call"),
    ],
)
def test_a_breach_is_found(tmp_path: Path, name: str, text: str, rule: str) -> None:
    assert breaches(tmp_path, name, text) == [rule]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("launch/a.py", "x = 1\n" * 400),
        ("launch/a.py", "def f():\n" + "    x = 1\n" * 59),
        ("hybridgen/models/layers.py", "import torch\n"),
        ("workers/gpu.py", "import torch\n"),
        ("ipc/channel.py", "import zmq\n"),
        ("launch/placement.py", "import psutil\n"),
        ("tools/bench.py", "import torch\n"),
        ("tests/test_a.py", "x = 1\n" * 600),
    ],
)
def test_what_is_allowed_is_no_breach(tmp_path: Path, name: str, text: str) -> None:
    assert breaches(tmp_path, name, text) == []


def test_linked_folders_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "ipc").mkdir()
    (tmp_path / "ipc" / "a.py").touch()
    (tmp_path / "hybridgen").mkdir()
    (tmp_path / "hybridgen" / "ipc").symlink_to("../ipc")
    assert source_files(tmp_path) == [tmp_path / "ipc" / "a.py"]
