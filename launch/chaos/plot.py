"""Small plots as SVG: enough for a time line, a distribution and a course."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 860, 150
LEFT, RIGHT, TOP, BOTTOM = 110, 30, 8, 24
COLORS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5")
_NUM_BINS = 40


def events(times: Sequence[tuple[float, str]], span_s: float) -> str:
    """A row of ticks per name."""
    names = sorted({name for _, name in times})
    step = (HEIGHT - TOP - BOTTOM) / max(1, len(names))
    parts = []
    for row, name in enumerate(names):
        y = TOP + step * row
        parts.append(_text(LEFT - 6, y + step / 2 + 4, name, anchor="end"))
        color = COLORS[row % len(COLORS)]
        parts += [
            f'<line x1="{_x(at_s, span_s):.1f}" x2="{_x(at_s, span_s):.1f}" y1="{y + 1:.1f}" '
            f'y2="{y + step - 1:.1f}" stroke="{color}"/>'
            for at_s, one in times
            if one == name
        ]
    return _svg([*parts, *_seconds_axis(span_s)])


def course(values: Sequence[float], span_s: float, unit: str) -> str:
    """Values of equal windows over time; windows with nothing are marked."""
    most = max(values, default=0.0) or 1.0
    width = span_s / max(1, len(values))
    points, parts = [], []
    for number, value in enumerate(values):
        x = _x((number + 0.5) * width, span_s)
        points.append(f"{x:.1f},{_y(value, most):.1f}")
        if not value:
            parts.append(f'<circle cx="{x:.1f}" cy="{_y(0, most):.1f}" r="3" fill="{COLORS[2]}"/>')
    line = f'<polyline fill="none" stroke="{COLORS[0]}" points="{" ".join(points)}"/>'
    return _svg([line, *parts, *_seconds_axis(span_s), *_value_axis(most, unit)])


def distribution(values: Sequence[float], unit: str) -> str:
    """A histogram whose bins grow by a constant factor."""
    shown = [max(value, 1e-4) for value in values]
    if not shown:
        return _svg([_text(LEFT, HEIGHT / 2, "nothing to show")])
    low = math.floor(math.log10(min(shown)) * 2) / 2
    high = max(low + 0.5, math.ceil(math.log10(max(shown)) * 2) / 2)
    counts = [0] * _NUM_BINS
    for value in shown:
        place = (math.log10(value) - low) / (high - low)
        counts[min(_NUM_BINS - 1, int(place * _NUM_BINS))] += 1
    most = max(counts)
    step = (WIDTH - LEFT - RIGHT) / _NUM_BINS
    parts = [
        f'<rect x="{LEFT + step * number:.1f}" y="{_y(count, most):.1f}" width="{step - 1:.1f}" '
        f'height="{_y(0, most) - _y(count, most):.1f}" fill="{COLORS[0]}"/>'
        for number, count in enumerate(counts)
    ]
    decades = [low + 0.5 * number for number in range(int((high - low) * 2) + 1)]
    for decade in decades:
        x = LEFT + (decade - low) / (high - low) * (WIDTH - LEFT - RIGHT)
        parts.append(_text(x, HEIGHT - 8, f"{10**decade:.2g} {unit}", anchor="middle"))
    return _svg([*parts, *_value_axis(most, "")])


def _x(at_s: float, span_s: float) -> float:
    return LEFT + at_s / max(span_s, 1e-9) * (WIDTH - LEFT - RIGHT)


def _y(value: float, most: float) -> float:
    return HEIGHT - BOTTOM - value / most * (HEIGHT - TOP - BOTTOM)


def _seconds_axis(span_s: float) -> list[str]:
    ticks = [span_s * number / 4 for number in range(5)]
    return [_text(_x(t, span_s), HEIGHT - 8, f"{t:.0f} s", anchor="middle") for t in ticks]


def _value_axis(most: float, unit: str) -> list[str]:
    shown = ((0.0, "0"), (most, f"{most:.0f} {unit}".rstrip()))
    return [_text(LEFT - 6, _y(value, most) + 4, text, anchor="end") for value, text in shown]


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}">{"".join(parts)}</svg>'
