"""When a device that jobs take in turns waits for gradients, and when it is only passed on."""

from __future__ import annotations

from xbench.records import TurnTaken
from xbench.report.charts.steps import waits_before


def test_passing_a_turn_on_is_no_wait() -> None:
    turns = [
        TurnTaken(job=0, start_s=0.0, computed_s=1.0, arrived_s=1.25),
        TurnTaken(job=1, start_s=1.125, computed_s=2.0, arrived_s=2.5),  # nobody knows since when it had its gradients
        TurnTaken(job=0, start_s=2.0625, computed_s=2.25, arrived_s=None),  # which had asked before the device was free
        TurnTaken(job=1, start_s=2.75, computed_s=3.0, arrived_s=None),
    ]
    assert waits_before(turns) == [None, (1.0, 1.125), None, (2.25, 2.5)]


def test_no_turns_wait_for_nothing() -> None:
    assert waits_before([]) == []
