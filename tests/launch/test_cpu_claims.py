from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridgen.errors import ConfigError
from hybridgen.ipc.runtime_dir import RuntimeDir
from hybridgen.launch import cpu_claims, instances


@pytest.fixture
def trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Runtime directories of two live trees of this user."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    made = [RuntimeDir.create(None, instance) for instance in ("aaaa0001", "bbbb0002")]
    yield [runtime.path for runtime in made]
    for runtime in made:
        cpu_claims.release(runtime.path)
        runtime.remove()


def test_a_claim_is_seen_by_other_trees_and_not_by_its_own(trees: list[Path]) -> None:
    first, second = trees
    assert cpu_claims.claimed_by_others(first) == frozenset()
    assert cpu_claims.claim(first, [0, 1, 2, 7], frozenset())
    assert cpu_claims.claimed_by_others(second) == {0, 1, 2, 7}
    assert cpu_claims.claimed_by_others(first) == frozenset()
    cpu_claims.release(first)
    assert cpu_claims.claimed_by_others(second) == frozenset()


def test_a_claim_on_an_old_look_is_refused(trees: list[Path]) -> None:
    first, second = trees
    assert cpu_claims.claim(first, [0, 1], frozenset())
    assert not cpu_claims.claim(second, [1, 2], frozenset())
    assert cpu_claims.claim(second, [2, 3], frozenset({0, 1}))


def test_a_tree_may_claim_nothing(trees: list[Path]) -> None:
    first, second = trees
    assert cpu_claims.claim(first, [], frozenset())
    assert cpu_claims.claimed_by_others(second) == frozenset()


def test_claims_of_dead_trees_and_damaged_ones_do_not_count(
    trees: list[Path], tmp_path: Path
) -> None:
    dead = tmp_path / "hybridgen-0-cccc0003"
    dead.mkdir()
    (dead / "cpus").write_text("0-63")
    (trees[1] / "cpus").write_text("all of them")
    assert cpu_claims.claimed_by_others(trees[0]) == frozenset()


def test_a_link_to_a_runtime_directory_elsewhere_is_the_same_tree(
    trees: list[Path], tmp_path: Path
) -> None:
    elsewhere = RuntimeDir.create(tmp_path / "elsewhere", "dddd0004")
    instances.register(elsewhere, "dddd0004")
    assert cpu_claims.claim(elsewhere.path, [5], frozenset())
    assert cpu_claims.claimed_by_others(elsewhere.path) == frozenset()
    assert cpu_claims.claimed_by_others(trees[0]) == {5}
    instances.unregister("dddd0004")
    cpu_claims.release(elsewhere.path)
    elsewhere.remove()


def test_a_lock_of_somebody_else_is_named(trees: list[Path], tmp_path: Path) -> None:
    (tmp_path / f"hybridgen-{os.geteuid()}.cpus.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="cannot be claimed"):
        cpu_claims.claim(trees[0], [0], frozenset())
    assert cpu_claims.claim(trees[0], [], frozenset())
