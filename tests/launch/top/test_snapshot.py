from __future__ import annotations

import io
import json

from hybridgen.ipc.board import Role
from hybridgen.launch.top.snapshot import print_snapshot
from tests.launch.top.trees import busy_tree

URI = "hybridgen:///run/x"


def looked(*, is_json: bool) -> str:
    out = io.StringIO()
    looks = iter([busy_tree(1.0, 100), busy_tree(2.0, 200)])
    print_snapshot(lambda: next(looks), URI, 0.0, is_json=is_json, stream=out)
    return out.getvalue()


def test_without_a_terminal_there_is_one_picture_in_plain_text() -> None:
    lines = looked(is_json=False).splitlines()
    assert lines[0].startswith(f"{URI}  mock on cpu, ready")
    assert lines[2].startswith("100 tokens/s")
    assert [line.split()[-13:] for line in lines if "gpu-0" in line]
    assert "\x1b" not in "".join(lines)


def test_the_json_has_the_figures_and_what_ps_has() -> None:
    facts = json.loads(looked(is_json=True))
    assert facts["uri"] == URI
    assert facts["figures"]["tokens_per_s"] == 100.0
    assert [process["role"] for process in facts["processes"]] == [role.label for role in Role]
    assert facts["processes"][Role.GPU]["rings"] == [{"name": "logits", "depth": 1, "capacity": 2}]
