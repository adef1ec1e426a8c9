"""Bars with intervals: a few by hand, and the laws that hold for all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.report.charts.text import FILLED, HIGH, LOW, NARROW, bar


@pytest.mark.parametrize(
    ("value", "interval", "drawn"),
    [
        (5.0, (5.0, 5.0), "█████│"),
        (5.0, (4.0, 6.0), "████├┼┤"),
        (5.0, (2.0, 8.0), "██├──┼──┤"),
        (5.0, (4.5, 5.5), "████├┤"),
        (10.0, (10.0, 10.0), "█████████│"),
        (0.0, (0.0, 0.0), "│"),
        (9.0, (0.0, 10.0), "├────────┤"),
    ],
)
def test_bars(value: float, interval: tuple[float, float], drawn: str) -> None:
    assert bar(value, interval, 10.0, 10) == drawn


TIMES = st.floats(0, 1e300, allow_nan=False)


@given(st.lists(TIMES, min_size=3, max_size=3).map(sorted), TIMES, st.integers(1, 80))
def test_a_bar_fits_and_shows_its_interval(times: list[float], more: float, columns: int) -> None:
    low, value, high = times
    longest = max(high, more)
    if longest == 0:
        return
    drawn = bar(value, (low, high), longest, columns)
    assert len(drawn) <= columns
    assert drawn.lstrip(FILLED)[0] in (LOW, NARROW)
    assert drawn[-1] in (HIGH, NARROW)


@given(st.integers(0, 99), st.integers(0, 99))
def test_a_longer_time_has_no_shorter_bar(one: int, other: int) -> None:
    short, long = sorted((one, other))
    assert len(bar(short, (short, short), 100, 40)) <= len(bar(long, (long, long), 100, 40))
