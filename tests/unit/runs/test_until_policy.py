"""The launches of a run until a precision, on a clock of its own: how many launches, and what is said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from samples_of_runs import Clock, block, collector_of, run_of

from xbench.runs.launch_policy import MIN_PILOT, UntilPrecise
from xbench.spec import Effort, FabricSpec

STEP_S = {"compute": 0.3, "ddp": 0.5, "auto": 0.45, "single": 0.9}


def launches_of(
    spread: float, *, minutes: float = 60, effort: Effort | None = None, failed: Sequence[str] = (), apart: int = 0
) -> tuple[int, list[str], UntilPrecise]:
    """Launches that a run takes whose `auto` differs from launch to launch by ± `spread`, 100 s each.

    `failed` modes have no blocks. `apart`: launches that time nothing, without host tuning.
    """
    run = run_of("compute,ddp,auto,single", reference="ddp", effort=effort or Effort(launches=4, rounds=4))
    run = run.model_copy(update={"host_tuning": False} if apart else {})
    clock, found, said = Clock(), collector_of(run), []
    policy = UntilPrecise(0.02, 60 * minutes, clock)
    assert policy.check(run) == ()
    number = 0
    while (launch := policy.next_launch(number, found, [])) is not None:
        said += launch.says
        found.begin_launch(number)
        for phase in (one for one in launch.phases if one.kind == "block" and one.mode not in failed):
            step_s = STEP_S[phase.mode] * (1 + spread * (-1) ** number * (phase.mode == "auto"))
            restless = phase.mode in ("single", "compute")  # slower for sure, and a control
            step_s *= 1 + 30 * spread * (number % 3 == 0) * restless
            stamps = [clock.now_s + place * step_s for place in range(6)]
            for rank in range(2):
                found.take(0, rank, block(phase.mode, stamps, phase.round, position=phase.position))
        clock.now_s += 100.0
        number += 1
        assert number < 150
    assert policy.ran(run).effort.launches == number - apart
    return number - apart, said, policy


@pytest.mark.parametrize(
    ("spread", "given", "launches", "about"),
    [
        (0.002, {}, MIN_PILOT, None),  # they agree
        (0.002, {"effort": Effort(launches=6, rounds=4)}, 6, None),
        (0.002, {"effort": Effort(launches=1, rounds=6)}, MIN_PILOT, None),
        # ±1.2 % about the mean of four is a standard deviation of 1.39 %, and 2.776 · 1.39 %/√5 = 1.72 %
        (0.012, {}, 5, 5),
        (0.012, {"apart": 1}, 5, 5),  # a launch that times nothing does not count
        (0.012, {"failed": ["single"]}, 5, 5),  # a mode without blocks asks for none
        (0.03, {"failed": ["ddp"]}, MIN_PILOT, None),  # without a ratio there is nothing to ask
        (0.03, {"failed": list(STEP_S)}, MIN_PILOT, None),
    ],
)
def test_launches_are_as_many_as_the_precision_needs(
    spread: float, given: dict[str, Any], launches: int, about: int | None
) -> None:
    number, said, policy = launches_of(spread, **given)
    assert (number, policy.warnings, len(said)) == (launches, [], about is not None)
    assert about is None or f"±2 % need about {about} launches of 4 rounds of 4 steps here; about 2 min" in said[0]


@pytest.mark.parametrize("apart", [0, 1])
def test_the_budget_ends_it_and_the_record_says_so(apart: int) -> None:
    number, _, policy = launches_of(0.03, minutes=10, apart=apart)
    assert number == 6 - apart  # 100 s each
    assert policy.warnings == [f"--until 2 %: the budget of 10 min ended after {number} launches of 15"]


def test_given_ranks_have_one_launch() -> None:
    policy = UntilPrecise(0.02, 60.0)
    run = run_of("ddp", fabric=FabricSpec(name="cluster"))
    assert policy.check(run) == ("the ranks are given, so there is one launch, and --until has no effect",)
    assert policy.ran(run) == run
