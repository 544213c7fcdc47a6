"""Reports about processes that hung: bounded, private, never a failure of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hybridgen.launch import incident
from hybridgen.launch.incident import IncidentFolder, native_threads


def test_a_report_is_private(tmp_path: Path) -> None:
    path = IncidentFolder(tmp_path / "a" / "b").write("gpu-0", "text")
    assert path is not None
    assert path.read_text() == "text"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_the_oldest_reports_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = IncidentFolder(tmp_path)
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    times = iter(f"20260101T0000{n:02}" for n in range(60))
    monkeypatch.setattr(incident.time, "strftime", lambda *_: next(times))
    for _ in range(incident.MAX_INCIDENTS + 3):
        folder.write("x", "text")
    kept = sorted(path.name for path in tmp_path.glob("2026*"))
    assert len(kept) == incident.MAX_INCIDENTS
    assert kept[0].startswith("20260101T000003")
    assert other.exists()


def test_a_folder_that_cannot_be_made_is_only_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert IncidentFolder(blocked / "below").write("x", "text") is None
    assert "no report can be kept" in caplog.text


def test_every_thread_has_a_line() -> None:
    lines = native_threads(os.getpid()).splitlines()
    assert any(line.startswith(f"{os.getpid()} ") and "state" in line for line in lines)


def test_of_a_process_that_is_gone_nothing_is_said() -> None:
    assert native_threads(2**22 - 1) == ""
