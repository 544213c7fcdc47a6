"""The figures of a tree as lines of text: pure."""

from __future__ import annotations

from hybridgen.launch.top.figures import Figures


def figure_lines(figures: Figures) -> list[str]:
    """What runs, how fast, and how long things take."""
    step = "-" if figures.step_ms is None else f"{figures.step_ms:.2f} ms"
    lines = [
        f"running {figures.num_running}   waiting {figures.num_waiting}   "
        f"over HTTP {figures.num_open}",
        f"{figures.tokens_per_s:.0f} tokens/s   {figures.requests_per_s:.1f} requests/s   "
        f"step {step}",
    ]
    times = [
        f"{name} {format_s(latency.p50_s)} / {format_s(latency.p99_s)}"
        for name, latency in figures.latencies.items()
    ]
    return [*lines, f"p50 / p99   {'   '.join(times)}" if times else "p50 / p99   nothing ended"]


def format_s(seconds: float) -> str:
    """With the unit that suits it."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1.0 else f"{seconds:.2f} s"
