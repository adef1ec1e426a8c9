"""The parts that all figures share: readable units, names that fit on an axis, marks, and texts beside a plot.

Modes differ in colour and in shape. The colours are Okabe and Ito's, which people with any kind of colour vision can
tell apart. Seven colours and eight shapes give 56 modes a mark of their own.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from xbench.report.page.model import Layout, Trace
from xbench.units import format_bytes

COLOURS = ("--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "triangle-down", "cross")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
BELOW = {"orientation": "h", "yref": "container", "y": 0.0, "yanchor": "bottom", "xref": "paper", "x": 0.0,
         "maxheight": 1.0, "traceorder": "normal"}  # fmt: skip
"""Legend under the plot, where it covers no data."""

HOVER = "%{customdata}<extra></extra>"
"""Show the text in `customdata`, and nothing else, under the pointer."""

LONG_NAME = 16
LINE_PX = 16
REASON = 90
"""Characters of a reason that fit in place of a bar."""


class Unit(NamedTuple):
    """Unit of time for an axis; `per_s` is the factor from seconds."""

    name: str
    per_s: float

    def of(self, seconds: float) -> float:
        """Return seconds in this unit, to six digits. No clock here is more precise."""
        return rounded(seconds * self.per_s)

    def all(self, seconds: Iterable[float]) -> list[float]:
        """Return several times in this unit."""
        return [self.of(one) for one in seconds]


class Mark(NamedTuple):
    """Look of a mode in every figure."""

    colour: str
    symbol: str
    dash: str


def marks(modes: Iterable[str]) -> dict[str, Mark]:
    """Return a mark for each mode, by its position."""
    return {mode: Mark(COLOURS[place % 7], SYMBOLS[place % 8], DASHES[place % 5]) for place, mode in enumerate(modes)}


def time_unit(longest_s: float) -> Unit:
    """Return the unit in which the longest time of an axis has one to three digits before the point."""
    if longest_s >= 1:
        return Unit("s", 1.0)
    return Unit("ms", 1e3) if longest_s >= 1e-3 else Unit("µs", 1e6)


def long_unit(longest_s: float) -> Unit:
    """Return the unit for times from minutes to days."""
    for name, seconds in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if longest_s >= 2 * seconds:
            return Unit(name, 1 / seconds)
    return Unit("s", 1.0)


def rounded(value: float) -> float:
    """Return the value with six significant digits."""
    return float(f"{value:.6g}")


def plain(text: str) -> str:
    """Escape foreign text for plotly, which would read '<b>' as a tag."""
    return html.escape(" ".join(text.split()), quote=False)


def named(mode: str) -> str:
    """Return a mode's name for an axis. A long name is broken before its options, and after each comma in them."""
    safe = plain(mode)
    if len(mode) <= LONG_NAME:
        return safe
    name, colon, options = safe.partition(":")
    return f"{name}{colon}<br>{options.replace(',', ',<br>')}" if colon else safe


def rows_axis(names: Sequence[str]) -> Layout:
    """Return an axis with one row per name, the first at the top."""
    return {"categoryorder": "array", "categoryarray": list(names), "range": [len(names) - 0.5, -0.5]}


def rows_px(names: Iterable[str], row_px: int, margin_px: int) -> int:
    """Return the height [px] of a plot with one row per name. Each further line of a name adds to it."""
    return margin_px + sum(row_px + LINE_PX * name.count("<br>") for name in names)


def shortened(name: str, limit: int = 26) -> str:
    """Shorten a layer's name to its end, which differs between layers."""
    return plain(name if len(name) <= limit else f"…{name[1 - limit :]}")


def whiskers(values: Iterable[tuple[float, tuple[float, float]]], per: float = 1.0, **look: object) -> Layout:
    """Return error bars from the lower to the upper end of each value's interval, scaled by `per`."""
    ends = [(value, *interval) for value, interval in values]
    return {
        "type": "data", "symmetric": False, "color": "--ink", "thickness": 1.5, "width": 5, **look,
        "array": [rounded(per * max(0.0, high - value)) for value, _, high in ends],
        "arrayminus": [rounded(per * max(0.0, value - low)) for value, low, _ in ends],
    }  # fmt: skip


def vertical_line(at: float, **line: object) -> Layout:
    """Return a vertical line across the whole plot; without `line` it is dotted, in the colour of text."""
    look = line or {"color": "--ink", "dash": "dot", "width": 1.5}
    return {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1, "line": look}


def time_axis(title: str, unit: Unit, **more: object) -> Layout:
    """Return an axis of times that begins at zero."""
    return {"title": {"text": f"{title} [{unit.name}]"}, "rangemode": "tozero", **more}


def points(x: Sequence[object], y: Sequence[object], told: Sequence[str], **look: object) -> Trace:
    """Return a mark for each `x` and `y`, with its text in `told` under the pointer."""
    return {"type": "scatter", "mode": "markers", "x": x, "y": y, "customdata": told, "hovertemplate": HOVER, **look}


def row_text(row: object, text: str, size: int = 11) -> Layout:
    """Return text to the right of the plot, beside a row."""
    return {"x": 1, "xref": "paper", "xanchor": "left", "xshift": 10, "y": row, "yanchor": "middle", "align": "left",
            "text": text, "showarrow": False, "font": {"size": size, "color": "--muted"}}  # fmt: skip


def in_place(row: object, text: str, colour: str) -> Layout:
    """Return text at the left end of a row that has nothing to draw."""
    return {"x": 0, "xref": "paper", "xanchor": "left", "xshift": 6, "y": row, "yanchor": "middle", "text": plain(text),
            "showarrow": False, "font": {"color": colour, "weight": 700}}  # fmt: skip


def launch_divider(at: float, text: str) -> tuple[Layout, Layout]:
    """Return a thin vertical line, and text above the plot to its right."""
    said = {"x": at, "xanchor": "left", "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False,
            "text": text, "font": {"size": 11, "color": "--muted"}}  # fmt: skip
    return vertical_line(at, color="--grid-strong", width=1, dash="dot"), said


def byte_ticks(largest: float, count: int = 4) -> Layout:
    """Return ticks of an axis of bytes: at most `count` round ones above zero, in binary units."""
    if largest <= 0:
        return {"tickvals": [0], "ticktext": ["0"]}
    step = 2 ** math.ceil(math.log2(largest / count))
    values = [step * number for number in range(int(largest // step) + 1)]
    return {"tickvals": values, "ticktext": ["0", *map(_whole, values[1:])]}


def byte_decades(sizes: Sequence[int]) -> Layout:
    """Return ticks of a logarithmic axis of bytes: powers of 16."""
    lowest, highest = (math.log(max(1, size), 16) for size in (min(sizes), max(sizes)))
    values = [16**power for power in range(math.floor(lowest), math.ceil(highest) + 1)]
    return {"tickvals": values, "ticktext": list(map(_whole, values))}


def _whole(nbytes: float) -> str:
    """Format a size as '4 MiB', where `format_bytes` has '4.00 MiB'."""
    number, _, unit = format_bytes(nbytes).partition(" ")
    return f"{float(number):g} {unit}"
