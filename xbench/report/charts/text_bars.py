"""Bars in text with the interval of what they show: `██████├─┼─┤`, or `██████│` where it is narrower than a column."""

from __future__ import annotations

from xbench.records import Interval

FILLED, LOW, HIGH, MEDIAN, BETWEEN, NARROW = "█", "├", "┤", "┼", "─", "│"
LEGEND = f"bar: time per sample from 0, {LOW}{BETWEEN}{HIGH} or {NARROW} its 95 % interval"


def bar(value: float, interval: Interval, longest: float, columns: int) -> str:
    """At most `columns` characters for 0 to `longest`, which is above 0 and at least the interval's upper end."""

    def column(at: float) -> int:
        return min(columns - 1, max(0, int(at / longest * columns)))

    low, middle, high = column(interval[0]), column(value), column(interval[1])
    if low >= high:
        return FILLED * middle + NARROW
    inside = "".join(MEDIAN if at == middle else BETWEEN for at in range(low + 1, high))
    return f"{FILLED * low}{LOW}{inside}{HIGH}"
