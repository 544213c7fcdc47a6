"""Process lists as a supervisor sends them."""

from __future__ import annotations

from typing import Any

from hybridgen.ipc.board import COUNTER_NAMES, HISTOGRAMS, Role
from hybridgen.messages import ProcessInfo, ProcessList, RingFill

ROLES = [role for role in Role if role is not Role.SUPERVISOR]


def process(role: Role, *, pid: int = 0, **changes: Any) -> ProcessInfo:
    """One process; ``counters`` and ``histograms`` name only what is not zero."""
    counters = dict.fromkeys(COUNTER_NAMES[role], 0) | changes.pop("counters", {})
    histograms = {spec.name: [0] * (len(spec.bounds) + 1) for spec in HISTOGRAMS[role]}
    fixed: dict[str, Any] = {
        "name": f"{role.label}-0",
        "role": role.label,
        "index": 0,
        "pid": pid or 100 + role,
        "incarnation": 1,
        "state": "ready",
        "restarts": 0,
        "cpus": [0, 1],
        "rss_bytes": 32 << 20,
        "progress": 0,
        "progress_age_s": 0.5,
        "counters": counters,
        "histograms": histograms | changes.pop("histograms", {}),
    }
    return ProcessInfo(**(fixed | changes))


def tree(uptime_s: float, *processes: ProcessInfo, instance: str = "00c0ffee") -> ProcessList:
    """A tree with one process of each role, some of them replaced by ``processes``."""
    given = {one.name: one for one in processes}
    everybody = [process(role) for role in Role]
    return ProcessList(
        request_id=b"",
        instance=instance,
        model="mock",
        device="cpu",
        uptime_s=uptime_s,
        is_ready=True,
        shm_bytes=1 << 20,
        processes=[given.pop(one.name, one) for one in everybody] + list(given.values()),
    )


def busy_tree(uptime_s: float, num_tokens: int = 0, **gpu: Any) -> ProcessList:
    """One that has made ``num_tokens`` tokens, ten a step of 4 ms."""
    bounds = next(spec.bounds for spec in HISTOGRAMS[Role.DETOKENIZER] if spec.name == "ttft")
    ttft = [0] * (len(bounds) + 1)
    ttft[3] = num_tokens // 100
    steps = num_tokens // 10
    return tree(
        uptime_s,
        process(Role.COSCHEDULER, counters={"running": 4, "waiting": 7, "finished": steps}),
        process(
            Role.GPU,
            **{
                "counters": {"steps": steps, "step_ns": steps * 4_000_000},
                "rings": [RingFill("logits", 1, 2)],
                "cpu_time_s": uptime_s / 2,
                "progress": steps,
                **gpu,
            },
        ),
        process(Role.SAMPLER, counters={"tokens": num_tokens}),
        process(Role.DETOKENIZER, histograms={"ttft": ttft}),
        process(Role.GATEWAY, counters={"open": 3}),
    )
