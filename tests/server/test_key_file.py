from __future__ import annotations

from pathlib import Path

import pytest

from hybridgen.errors import ConfigError
from hybridgen.server.key_file import read_keys


def test_no_file_means_no_keys() -> None:
    assert read_keys("") is None


def test_each_line_of_the_file_is_a_key(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\nfirst\n\nsecond\n")
    keys = read_keys(str(path))
    assert keys is not None
    assert keys.accepts(b"first")
    assert keys.accepts(b"second")
    assert not keys.accepts(b"# ours")


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"# only this\n"])
def test_a_file_that_holds_no_keys_is_a_typed_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError):
        read_keys(str(path))
