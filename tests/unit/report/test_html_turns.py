"""The figure of two jobs' turns, and when a device that jobs take in turns waits for gradients."""

from __future__ import annotations

import sample_records as made

from xbench.records import Comparison, TurnTaken
from xbench.report.charts.steps import comparison_turns, waits_before
from xbench.report.formats.html import page

TURNS = [
    TurnTaken(job=0, start_s=0.0, computed_s=0.25, arrived_s=0.5),
    TurnTaken(job=1, start_s=0.375, computed_s=0.75, arrived_s=None),
    TurnTaken(job=0, start_s=0.75, computed_s=1.0, arrived_s=0.875),
]


def recorded() -> Comparison:
    record = made.paired()
    mode = record.modes["crossover:mgwfbp"].model_copy(update={"turns": TURNS})
    jobs = [record.jobs[0], record.jobs[0]]
    return record.model_copy(update={"jobs": jobs, "modes": {**record.modes, mode.mode: mode}})


def bars(name: str) -> list[tuple[float, float]]:
    (figure,) = comparison_turns(recorded())
    return [
        (start, length)
        for trace in figure.traces
        if trace["name"] == name
        for start, length in zip(trace["base"], trace["x"], strict=True)
    ]


def test_the_device_is_held_by_one_job_or_nobody_and_gradients_travel_on_after_a_turn() -> None:
    assert bars("turn of A") == [(0.0, 0.25), (0.75, 0.25)]
    assert bars("turn of B") == [(0.375, 0.375)]
    assert bars("waits for communication: exposed") == [(0.25, 0.125)]
    assert bars("gradients travel") == [(0.25, 0.25)]  # not where they arrived within the turn, or nobody saw it


def test_the_table_says_the_same() -> None:
    (figure,) = comparison_turns(recorded())
    assert figure.table is not None
    assert [row[:4] for row in figure.table.rows] == [
        ["A (resnet18)", "0 µs", "250 ms", "250 ms"],
        ["B (resnet18)", "375 ms", "375 ms", "–"],
        ["A (resnet18)", "750 ms", "250 ms", "0 µs"],
    ]
    assert figure.labels == ["real"]


def test_a_record_without_turns_has_no_figure_of_them() -> None:
    assert comparison_turns(made.paired()) == []
    assert "Turns of crossover:mgwfbp" in page([recorded()])


def test_passing_a_turn_on_is_no_wait() -> None:
    turns = [
        TurnTaken(job=0, start_s=0.0, computed_s=1.0, arrived_s=1.25),
        TurnTaken(job=1, start_s=1.125, computed_s=2.0, arrived_s=2.5),  # nobody knows since when it had its gradients
        TurnTaken(job=0, start_s=2.0625, computed_s=2.25, arrived_s=None),  # which had asked before the device was free
        TurnTaken(job=1, start_s=2.75, computed_s=3.0, arrived_s=None),
    ]
    assert waits_before(turns) == [None, (1.0, 1.125), None, (2.25, 2.5)]
    assert waits_before([]) == []
