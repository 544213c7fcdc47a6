"""From a history to the report of a scenario: figures, violations, what the page draws."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from hybridgen.errors import PoisonRequest
from hybridgen.launch.chaos import figures
from hybridgen.launch.chaos.check import Violation, violations
from hybridgen.launch.chaos.history import History
from hybridgen.launch.chaos.report import BlowShown, ScenarioReport
from hybridgen.launch.chaos.scenario import Plan, Scenario

#: Served in two deaths without a token in between: quarantined, and told so.
POISONED = PoisonRequest.code
#: Only where deaths may follow so closely on each other.
_MAY_POISON = frozenset({Plan.BEAT, Plan.FAULT})
_SHARES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))


def verdict(
    scenario: Scenario,
    history: History,
    *,
    found: Sequence[Violation] = (),
    allowed: frozenset[str] = frozenset(),
) -> ScenarioReport:
    """What came of a scenario.

    Args:
        scenario: what was done.
        history: of the run, at rest.
        found: violations that were seen meanwhile.
        allowed: codes of errors with which requests may end, besides quarantine where deaths come
            in close succession.
    """
    seconds = history.ended_s - history.begun_s
    stalls_s = figures.stalls_s(history)
    windows = figures.tokens_per_window(history)
    errors = [outcome.error for record in history.records for outcome in record.outcomes]
    num_tokens = sum(len(p.ids) or 1 for record in history.records for p in record.pieces)
    is_over_after_blow = scenario.plan is Plan.SUPERVISOR
    may_poison = scenario.plan in _MAY_POISON
    shown = {
        **spread("detected", figures.detections_s(history.blows)),
        **spread("noted", figures.notes_s(history.blows)),
        **spread("whole", figures.recoveries_s(history.blows)),
        **spread("stall", stalls_s),
        **spread("accepts", () if is_over_after_blow else figures.acceptances_s(history)),
        "windows_share": figures.windows_share(windows),
        "tokens_per_s": num_tokens / seconds,
        **({"num_poisoned": errors.count(POISONED)} if may_poison else {}),
    }
    allowed |= {POISONED} if may_poison else frozenset()
    return ScenarioReport(
        name=scenario.name,
        text=scenario.text,
        seconds=seconds,
        num_kills=len(history.blows),
        num_requests=len(history.records),
        num_tokens=num_tokens,
        num_poisoned=errors.count(POISONED),
        figures=shown,
        aims=list(scenario.aims),
        violations=[*found, *violations(history, allowed)],
        blows=[BlowShown(b.at_s - history.begun_s, b.name, b.how) for b in history.blows],
        stalls_s=stalls_s,
        tokens_per_window=windows,
        load=os.getloadavg()[0],
    )


def spread(name: str, values_s: Iterable[float]) -> dict[str, float]:
    """Percentiles of ``values_s`` as figures; nothing of nothing."""
    values = list(values_s)
    if not values:
        return {}
    return {f"{name}_{label}_s": figures.percentile(values, share) for label, share in _SHARES}
