from __future__ import annotations

import os
from pathlib import Path

import pytest

from hybridgen.errors import ConfigError, PeerGone
from hybridgen.ipc.runtime_dir import RuntimeDir, instance_path
from hybridgen.launch import instances


@pytest.fixture(autouse=True)
def own_base(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def test_a_default_directory_is_found_while_its_lock_is_held() -> None:
    runtime = RuntimeDir.create(None, "0000000a")
    instances.register(runtime, "0000000a")
    assert instances.running() == [runtime.path]
    assert instances.find(None) == runtime.path
    instances.unregister("0000000a")
    runtime.remove()
    assert instances.running() == []


def test_a_directory_of_ones_own_is_found_through_its_link(tmp_path: Path) -> None:
    runtime = RuntimeDir.create(tmp_path / "elsewhere", "0000000b")
    instances.register(runtime, "0000000b")
    assert instances.running() == [tmp_path / "elsewhere"]
    instances.unregister("0000000b")
    assert instances.running() == []
    runtime.remove()


def make_old(path: Path) -> None:
    os.utime(path, (0, 0), follow_symlinks=False)


def test_a_directory_that_was_just_made_may_belong_to_a_start() -> None:
    young = instance_path("0000000f")
    young.mkdir()
    assert instances.running() == []
    assert young.is_dir()


def test_a_tree_that_ends_while_one_looks_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = instance_path("0000000f")
    entry.mkdir()

    def end_now(path: Path) -> bool:
        path.rmdir()
        return False

    monkeypatch.setattr(instances, "is_alive", end_now)
    assert instances.running() == []


def test_a_tree_is_also_found_by_its_directory(tmp_path: Path) -> None:
    assert instances.find(str(tmp_path)) == tmp_path
    with pytest.raises(ConfigError, match="address"):
        instances.find("")


def test_entries_of_dead_trees_are_swept(tmp_path: Path) -> None:
    dead = instance_path("0000000c")
    dead.mkdir()
    (dead / "lock").write_text("1\n")
    (dead / "admin.sock").touch()
    dangling = instance_path("0000000d")
    dangling.symlink_to(tmp_path / "gone")
    make_old(dead)
    make_old(dangling)
    assert instances.running() == []
    assert not dead.exists()
    assert not dangling.is_symlink()


def test_a_swept_link_leaves_its_target_alone(tmp_path: Path) -> None:
    target = tmp_path / "mine"
    target.mkdir()
    instance_path("0000000e").symlink_to(target)
    make_old(instance_path("0000000e"))
    assert instances.running() == []
    assert target.is_dir()


def test_other_entries_are_not_touched(tmp_path: Path) -> None:
    other = tmp_path / instance_path("0123456789abcdef").name
    other.mkdir()
    assert instances.running() == []
    assert other.is_dir()


def test_several_trees_must_be_told_apart() -> None:
    trees = [RuntimeDir.create(None, f"0000001{i}") for i in range(2)]
    with pytest.raises(ConfigError, match="more than one"):
        instances.find(None)
    assert instances.find(trees[0].uri) == trees[0].path
    for tree in trees:
        tree.remove()


def test_no_tree_and_a_wrong_address_are_peer_gone(tmp_path: Path) -> None:
    with pytest.raises(PeerGone):
        instances.find(None)
    with pytest.raises(PeerGone):
        instances.find(f"hybridgen://{tmp_path}/nowhere")
