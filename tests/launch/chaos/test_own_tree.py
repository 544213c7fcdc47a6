from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hybridgen.errors import InternalError, PeerGone
from hybridgen.launch.chaos.history import Blow
from hybridgen.launch.chaos.own_tree import OwnTree
from hybridgen.launch.chaos.tree_log import Death, FaultSeen, Note, Return, TreeLog


def tree_of(pid: int) -> OwnTree:
    """A tree whose supervisor is the process ``pid``."""
    tree = OwnTree.__new__(OwnTree)
    tree.handle = SimpleNamespace(pid=pid)  # type: ignore[assignment]
    tree.log = TreeLog(Path(os.devnull))
    tree._to_monotonic_s = -1000.0
    return tree


def test_a_process_of_somebody_else_is_never_struck() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with pytest.raises(InternalError, match="not of the tree"):
            tree_of(1).strike("gpu-0", process.pid, signal.SIGKILL)
        assert process.poll() is None
        blow = tree_of(os.getpid()).strike("gpu-0", process.pid, signal.SIGKILL)
        assert (blow.name, blow.how) == ("gpu-0", "SIGKILL")
        assert process.wait() == -signal.SIGKILL
    finally:
        process.kill()
        process.communicate()
    with pytest.raises(PeerGone):
        tree_of(os.getpid()).strike("gpu-0", process.pid, signal.SIGKILL)


def test_a_death_of_its_own_counts_from_the_fault() -> None:
    tree = tree_of(1)
    tree.log.faults = [FaultSeen(1001.0, "gpu-0"), FaultSeen(1001.4, "gpu-0")]
    tree.log.faults += [FaultSeen(1001.45, "sampler-0"), FaultSeen(1003.0, "gpu-0")]
    tree.log.deaths = [Death(1001.5, "gpu-0", 7, 2, "exited with code 0")]
    blow = tree.blow_of(tree.log.deaths[0])
    assert (blow.at_s, blow.detected_s) == pytest.approx((1.4, 1.5))
    assert blow.how == "exited with code 0"


def test_a_blow_is_followed_through_the_log() -> None:
    tree = tree_of(1)
    tree.log.deaths = [Death(1001.5, "gpu-0", 7, 2, "killed by SIGKILL")]
    tree.log.returns = [Return(1001.4, "gpu-0", 2), Return(1002.5, "gpu-0", 3)]
    tree.log.notes = [Note(1001.6, "gpu-0", 2), Note(1002.6, "gpu-0", 2), Note(1001.55, "gpu-0", 1)]
    blow = Blow(1.49, "gpu-0", "SIGKILL")
    tree.follow(blow, 2)
    assert (blow.detected_s, blow.noted_s, blow.whole_s) == pytest.approx((1.5, 1.6, 2.5))
