from __future__ import annotations

from pathlib import Path

import pytest

from hybridgen.errors import BY_CODE
from hybridgen.launch.config_fields import config_fields
from hybridgen.server.metric_table import METRICS
from tools import make_docs


def test_every_option_and_every_error_is_documented() -> None:
    configuration, errors = make_docs.configuration_page(), make_docs.errors_page()
    assert all(f"`{field.flag}`" in configuration for field in config_fields().values())
    assert all(f"`{code}`" in errors for code in BY_CODE)


def test_every_metric_is_documented() -> None:
    page = make_docs.metrics_page()
    assert all(f"`{spec.exposed_name}" in page for spec in METRICS)


def test_check_tells_a_stale_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(make_docs, "DOCS", tmp_path)
    assert make_docs.main(["--check"]) == 1
    assert not list(tmp_path.iterdir())
    assert make_docs.main([]) == 0
    assert make_docs.main(["--check"]) == 0
    (tmp_path / "errors.md").write_text("old")
    assert make_docs.main(["--check"]) == 1
