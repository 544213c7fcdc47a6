from __future__ import annotations

import pytest

from hybridgen.launch.child import child_environment, describe_exit


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "exited with code 0 without being asked"),
        (3, "exited with code 3"),
        (-9, "killed by SIGKILL"),
        (-11, "killed by SIGSEGV"),
        (-50, "killed by signal 50"),
    ],
)
def test_exits_are_described(code: int, text: str) -> None:
    assert describe_exit(code) == text


def test_only_the_gpu_process_sees_a_device_and_its_threads() -> None:
    inherited = [("CUDA_VISIBLE_DEVICES", "3"), ("OMP_NUM_THREADS", "8"), ("LANG", "C")]
    assert child_environment(inherited, has_device=True) == dict(inherited)
    role = child_environment(inherited, has_device=False)
    assert (role["CUDA_VISIBLE_DEVICES"], role["OMP_NUM_THREADS"], role["LANG"]) == ("", "1", "C")
