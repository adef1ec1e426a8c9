"""Drawings in text: recorded steps by the column, the modes that are drawn, and bars with intervals."""

from __future__ import annotations

import pytest
import sample_records as made
from hypothesis import given
from hypothesis import strategies as st

from xbench.records import Comparison, Slice
from xbench.report.charts.steps import comparison_steps
from xbench.report.charts.text import FILLED, HIGH, LOW, NARROW, bar, lane, step_note
from xbench.report.formats.terminal import render


def part(start_s: float, end_s: float) -> Slice:
    return Slice(name="part", start_s=start_s, end_s=end_s)


@pytest.mark.parametrize(
    ("slices", "drawn"),
    [
        ([], "        "),
        ([part(0, 8)], "########"),
        ([part(0, 2), part(4, 6)], "##  ##  "),
        ([part(0.5, 2.4)], "##      "),  # half of the first column, less than half of the third
        ([part(4, 6), part(0, 5), part(1, 2)], "######  "),  # in any order, and overlapping
        ([part(2.0, 2.25), part(2.1, 2.2), part(2.15, 2.25)], "        "),  # what overlaps counts once
        ([part(2.0, 2.25), part(2.5, 2.75)], "  #     "),
        ([part(-1e12, 1e12)], "########"),
        ([part(6, 2)], "        "),
    ],
)
def test_a_column_is_filled_where_the_lane_is_busy_for_half_of_it(slices: list[Slice], drawn: str) -> None:
    assert lane(slices, 8.0, 8, "#") == drawn


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=8), st.integers(1, 60))
def test_a_lane_has_its_width_and_no_more_filled_columns_than_twice_the_busy_time(
    spans: list[tuple[float, float]], columns: int
) -> None:
    slices = [part(min(span), max(span)) for span in spans]
    text = lane(slices, 1.0, columns, "#")
    assert len(text) == columns
    busy_s = sum(one.end_s - one.start_s for one in slices)
    assert text.count("#") / columns <= 2 * busy_s + 1e-9


def drawing(record: Comparison, width: int = 100) -> list[str]:
    text = render(record, width=width)
    return text.split("One recorded step each", 1)[1].split("\n\n", 1)[0].splitlines() if "recorded" in text else []


def test_the_wait_for_input_has_a_mark_of_its_own() -> None:
    record = made.comparison()
    result = record.modes["ddp"]
    assert result.timeline is not None
    first, *others = result.timeline.compute
    fed = Slice(name="input", start_s=0.0, end_s=0.2)
    later = first.model_copy(update={"start_s": 0.2})
    timeline = result.timeline.model_copy(update={"compute": [fed, later, *others]})
    modes = {**record.modes, "ddp": result.model_copy(update={"timeline": timeline})}
    _, best, _, reference, _, *legend = drawing(record.model_copy(update={"modes": modes}))
    assert "▒" not in best
    assert reference.split()[2].startswith("▒▒▒")
    assert reference.count("▒") < reference.index("█")
    assert " ".join(legend).startswith("█ computes, ▒ waits for input, ░ waits for gradients: exposed")


def test_where_the_reference_is_best_the_next_best_is_drawn_beside_it() -> None:
    modes = [
        made.mode_result("ddp", 0.6, (1.0, 1.0, 1.0), "reference", buckets=4),
        made.mode_result("optimal", 0.7, (1.17, 1.1, 1.2), "slower", buckets=17),
        made.mode_result("wfbp", 0.62, (1.03, 1.0, 1.1), "slower", buckets=62),  # of which no step was recorded
        made.mode_result("single", 0.65, (1.08, 1.0, 1.1), "slower", buckets=1),
    ]
    rows = drawing(made.comparison(modes))
    assert [row.split()[0] for row in rows[1:5:2]] == ["ddp", "single"]


def test_a_record_without_timelines_draws_nothing() -> None:
    whole = made.comparison()
    bare = {name: mode.model_copy(update={"timeline": None}) for name, mode in whole.modes.items()}
    assert drawing(whole.model_copy(update={"modes": bare})) == []


def with_recorded(mode: str, step_s: float) -> Comparison:
    """The sample comparison with another recorded step of a mode."""
    record = made.comparison()
    result = record.modes[mode].model_copy(update={"timeline": made.recorded_step(step_s, 3)})
    return record.model_copy(update={"modes": {**record.modes, mode: result}})


def test_a_recorded_step_far_from_the_median_is_said_to_be() -> None:
    record = with_recorded("ddp", 0.73)
    sentence = step_note(record, record.modes["ddp"])
    assert sentence is not None
    assert "730 ms, 11.1 % more than its median step, 657 ms" in sentence
    assert step_note(record, record.modes["optimal"]) is None
    assert sentence in " ".join(render(record, width=100).split())
    assert [sentence in figure.told for figure in comparison_steps(record)][:2] == [False, True]


def test_a_recorded_step_near_the_median_or_of_a_pair_needs_no_word() -> None:
    near = with_recorded("ddp", 0.71)
    assert step_note(near, near.modes["ddp"]) is None
    pair = made.paired()
    for result in pair.modes.values():
        far = result.model_copy(update={"timeline": made.recorded_step(9.0, 3)})
        paired = result.mode in {mode.text for mode in pair.spec.modes if mode.paired}
        assert (step_note(pair, far) is None) == paired, result.mode


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
