"""How numbers and names are put on axes: units that can be read, names that fit, and a mark for every mode.

A mode is told from others by colour and by shape: the colours are Okabe and Ito's, which people with any kind of colour
vision can tell apart, and there are seven of them and eight shapes, so that 56 modes have marks of their own.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from xbench.report.page.model import Layout

COLOURS = ("--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "triangle-down", "cross")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
BELOW = {
    "orientation": "h",
    "yref": "container",
    "y": 0.0,
    "yanchor": "bottom",
    "xref": "paper",
    "x": 0.0,
    "maxheight": 1.0,
    "traceorder": "normal",
}
"""A legend under the plot, where it covers no data."""

LONG_NAME = 16


class Unit(NamedTuple):
    """A unit of time that suits an axis: multiply seconds by `per_s`."""

    name: str
    per_s: float

    def of(self, seconds: float) -> float:
        """Seconds in this unit, to six digits: more than any clock here knows."""
        return rounded(seconds * self.per_s)

    def all(self, seconds: Iterable[float]) -> list[float]:
        """The same of several."""
        return [self.of(one) for one in seconds]


class Mark(NamedTuple):
    """How a mode looks wherever it is drawn."""

    colour: str
    symbol: str
    dash: str


def marks(modes: Iterable[str]) -> dict[str, Mark]:
    """A mark for each mode, by its place."""
    return {mode: Mark(COLOURS[place % 7], SYMBOLS[place % 8], DASHES[place % 5]) for place, mode in enumerate(modes)}


def time_unit(longest_s: float) -> Unit:
    """The unit in which the longest time of an axis has one to three digits before the point."""
    if longest_s >= 1:
        return Unit("s", 1.0)
    return Unit("ms", 1e3) if longest_s >= 1e-3 else Unit("µs", 1e6)


def long_unit(longest_s: float) -> Unit:
    """The same of what takes minutes to days."""
    for name, seconds in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if longest_s >= 2 * seconds:
            return Unit(name, 1 / seconds)
    return Unit("s", 1.0)


def rounded(value: float) -> float:
    """Six significant digits."""
    return float(f"{value:.6g}")


def plain(text: str) -> str:
    """Foreign text for plotly, which would take '<b>' for a tag."""
    return html.escape(" ".join(text.split()), quote=False)


def named(mode: str) -> str:
    """A mode's name for an axis: a long one is broken where its options begin, and at commas after that."""
    safe = plain(mode)
    if len(mode) <= LONG_NAME:
        return safe
    name, colon, options = safe.partition(":")
    return f"{name}{colon}<br>{options.replace(',', ',<br>')}" if colon else safe


def lines_of(name: str) -> int:
    """How many lines an axis' name has."""
    return name.count("<br>") + 1


def shortened(name: str, limit: int = 26) -> str:
    """A layer's name by its end, which tells layers apart."""
    return plain(name if len(name) <= limit else f"…{name[1 - limit :]}")


def whiskers(
    values: Iterable[tuple[float, tuple[float, float]]],
    per: float = 1.0,
    *,
    colour: str = "--ink",
    thickness: float = 1.5,
    width: int = 5,
) -> Layout:
    """Error bars from the lower to the upper end of each value's interval, in units of which a value has `per`."""
    ends = [(value, *interval) for value, interval in values]
    return {
        "type": "data", "symmetric": False, "color": colour, "thickness": thickness, "width": width,
        "array": [rounded(per * max(0.0, high - value)) for value, _, high in ends],
        "arrayminus": [rounded(per * max(0.0, value - low)) for value, low, _ in ends],
    }  # fmt: skip


def upright(at: float, **line: object) -> Layout:
    """A line across the whole plot; dotted in the colour of ink unless `line` says otherwise."""
    look = line or {"color": "--ink", "dash": "dot", "width": 1.5}
    return {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1, "line": look}


def time_axis(title: str, unit: Unit, **more: object) -> Layout:
    """An axis of times from zero on."""
    return {"title": {"text": f"{title} [{unit.name}]"}, "rangemode": "tozero", **more}


def byte_ticks(largest: float, count: int = 4) -> Layout:
    """Ticks of an axis of bytes: at most `count` round ones beyond zero, in binary units."""
    from xbench.units import format_bytes

    if largest <= 0:
        return {"tickvals": [0], "ticktext": ["0"]}
    step = 2 ** math.ceil(math.log2(largest / count))
    values = [step * number for number in range(int(largest // step) + 1)]
    return {"tickvals": values, "ticktext": ["0", *(_whole(format_bytes(value)) for value in values[1:])]}


def byte_decades(sizes: Sequence[int]) -> Layout:
    """Ticks of a logarithmic axis of bytes: powers of 16."""
    from xbench.units import format_bytes

    lowest, highest = (math.log(max(1, size), 16) for size in (min(sizes), max(sizes)))
    values = [16**power for power in range(math.floor(lowest), math.ceil(highest) + 1)]
    return {"tickvals": values, "ticktext": [_whole(format_bytes(value)) for value in values]}


def _whole(text: str) -> str:
    """'4 MiB' of '4.00 MiB'."""
    number, _, unit = text.partition(" ")
    return f"{float(number):g} {unit}"
