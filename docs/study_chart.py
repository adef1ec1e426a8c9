"""Small line charts as SVG, for docs/make_study.py: logarithmic axes, a legend, published points as rings.

By hand because no plotting library is a dependency of the project, and six charts of three lines need none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 330, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 30, 44
COLOURS = {"wfbp": "#c2410c", "single": "#1d4ed8", "optimal": "#15803d", "mgwfbp": "#6b7280"}
WIDTHS = {"wfbp": 4.5, "single": 3, "optimal": 1.6}
"""Those drawn first are widest, so that they show where others lie on them."""

INK, FAINT = "#1f2937", "#e5e7eb"


@dataclass(frozen=True)
class Line:
    """One curve."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Mark:
    """A published point of the curve `name`."""

    x: float
    y: float
    name: str


@dataclass(frozen=True)
class Chart:
    """Curves over one axis; with `levels` the marks are drawn as horizontal lines, too."""

    title: str
    x_title: str
    lines: list[Line]
    marks: list[Mark] = field(default_factory=list)
    levels: bool = False


def draw(charts: Sequence[Chart], *, columns: int, y_title: str, marks: str) -> str:
    """The charts in rows of `columns`, with one legend on top."""
    rows = math.ceil(len(charts) / columns)
    width, height = columns * WIDTH + 20, rows * HEIGHT + 46
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="11" fill="{INK}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *_legend(y_title, marks),
    ]
    for place, chart in enumerate(charts):
        x, y = 14 + (place % columns) * WIDTH, 40 + (place // columns) * HEIGHT
        parts += [f'<g transform="translate({x},{y})">', *_chart(chart), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(y_title: str, marks: str) -> list[str]:
    parts = [_text(14, 22, y_title, size=13, weight="bold")]
    x = 390
    for name in ("wfbp", "single", "optimal"):
        parts.append(
            f'<line x1="{x}" x2="{x + 22}" y1="18" y2="18" stroke="{COLOURS[name]}" stroke-width="{WIDTHS[name]}"/>'
        )
        parts.append(_text(x + 28, 22, name, size=12))
        x += 52 + 7 * len(name)
    parts.append(f'<circle cx="{x + 8}" cy="18" r="5" fill="white" stroke="{INK}" stroke-width="1.6"/>')
    parts.append(_text(x + 20, 22, marks, size=12))
    parts.append(f'<line x1="{x + 160}" x2="{x + 182}" y1="18" y2="18" stroke="{COLOURS["mgwfbp"]}"/>')
    parts.append(_text(x + 188, 22, "mgwfbp = 1", size=12))
    return parts


def _chart(chart: Chart) -> list[str]:
    xs = [value for line in chart.lines for value in line.x]
    ys = [value for line in chart.lines for value in line.y] + [mark.y for mark in chart.marks] + [1.0]
    x_of = _scale(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    y_of = _scale(min(ys) * 0.95, max(ys) * 1.05, HEIGHT - BOTTOM, TOP)
    parts = [_text(LEFT, 18, chart.title, size=12, weight="bold")]
    for tick in _ticks(min(ys) * 0.95, max(ys) * 1.05):
        y = y_of(tick)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{FAINT}"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{tick:g}", anchor="end"))
    whole = all(float(value).is_integer() for value in xs)
    for tick in sorted(set(xs))[::2] if whole else _ticks(min(xs), max(xs)):
        x = x_of(tick)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="{FAINT}"/>')
        parts.append(_text(x, HEIGHT - BOTTOM + 15, f"{tick:g}", anchor="middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 32, chart.x_title, anchor="middle"))
    one = y_of(1.0)
    parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{one:.1f}" y2="{one:.1f}" stroke="{COLOURS["mgwfbp"]}"/>')
    for line in chart.lines:
        points = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in zip(line.x, line.y, strict=True))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{COLOURS[line.name]}" '
            f'stroke-width="{WIDTHS[line.name]}"/>'
        )
    for mark in chart.marks:
        y = y_of(mark.y)
        if chart.levels:
            parts.append(
                f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{COLOURS[mark.name]}" '
                'stroke-dasharray="4 3"/>'
            )
        parts.append(
            f'<circle cx="{x_of(mark.x):.1f}" cy="{y:.1f}" r="5" fill="white" stroke="{COLOURS[mark.name]}" '
            'stroke-width="2"/>'
        )
    return parts


def _scale(low: float, high: float, start: float, end: float):  # type: ignore[no-untyped-def]
    """A logarithmic axis: value to pixel."""
    span = math.log(high / low)
    return lambda value: start + (end - start) * math.log(value / low) / span


def _ticks(low: float, high: float) -> list[float]:
    """Round values within the range: 1, 2, 5 of each decade; closer ones where the range is short."""
    if high / low < 1.6:
        return [0.05 * count for count in range(1, 100) if low <= 0.05 * count <= high]
    steps = [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3] if high / low < 3 else [1, 2, 5] if high / low < 300 else [1]
    found = [step * 10.0**decade for decade in range(-4, 5) for step in steps]
    return [tick for tick in found if low <= tick <= high]


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 11, weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}">'
        f"{escape(text)}</text>"
    )
