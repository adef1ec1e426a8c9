"""Bare steps of a profile, measured again after the quiet step: at the machine's present speed, and with a loader."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from xbench.profilers import SHARE
from xbench.profilers.summary import slowest
from xbench.rank.parity_checker import gathered
from xbench.rank.session import Session
from xbench.records import StepTimes
from xbench.stats.convergence import cycles_s
from xbench.stats.summary import median_estimate

AGAIN_S, QUICK_AGAIN_S = 4.0, 0.8
MIN_AGAIN, MAX_AGAIN = 5, 600
SAME_SPEED = 0.02
WITH_LOADER = 12
"""Least number of bursts of steps with a loader, for a test of its ranks (`stragglers.ranks_behind`)."""

PREPARED = 2
"""Bursts that a loader prepares in advance: torch's default `prefetch_factor`."""


def bare_again(session: Session, step: StepTimes, least: int = MIN_AGAIN) -> list[list[float]]:
    """Return the times [s] of a few seconds of bare steps, by rank, and of `least` bursts of a loader. Collective.

    As in the first measurement and in the blocks, steps do not wait for the device. A GPU that idles between steps
    would seem slower.
    """
    budget_s = SHARE * (QUICK_AGAIN_S if session.run.effort.is_quick else AGAIN_S)
    fewest = (least + PREPARED) * session.workload.burst
    count = max(fewest, min(MAX_AGAIN, int(budget_s / max(step.uninstrumented_step_s, 1e-4))))
    marks = [session.clock.mark()]
    for number in range(count + 1):
        session.note(f"step without communication, again, {number + 1} of {count + 1}")
        session.bare_step()
        marks.append(session.clock.mark())
    session.clock.flush()
    took_s = [session.clock.elapsed_s(*pair) for pair in itertools.pairwise(marks)]
    session.clock.reset()
    return gathered(took_s[1:])


def at_present_speed(step: StepTimes, again: Sequence[Sequence[float]]) -> StepTimes:
    """Return the step with its bare time measured again, if it has changed. Machines change speed within a minute.

    `again` has the bare steps [s] by rank. Each counts as the maximum over ranks. Plans are made and timed at this
    speed, and all parts of the step are scaled to it (`StepModel.of`).
    """
    found = median_estimate(slowest(again))
    if abs(found.median / step.uninstrumented_step_s - 1) <= SAME_SPEED:
        return step
    return step.model_copy(update={"uninstrumented_step_s": found.median, "uninstrumented_ci95": found.ci95})


def loader_cycles(steps_s: Sequence[float], burst: int) -> list[float]:
    """Return the times [s] of steps with a loader that works ahead: `burst` of them count as one, by their mean.

    The first bursts had been prepared before, and are left out.
    """
    return cycles_s(steps_s[PREPARED * burst :], burst)


def with_loader(step: StepTimes, cycles: Sequence[Sequence[float]]) -> StepTimes:
    """Return the step with the wait for a loader that works ahead.

    `step` is without it, and `cycles` has the times of steps with it [s] by rank (`loader_cycles`). The slowest rank
    counts: a burst of one need not meet that of another.
    """
    found = max(map(median_estimate, cycles), key=lambda one: one.median)
    input_s = found.median - step.uninstrumented_step_s
    if input_s <= 0:
        return step
    update = {"input_s": input_s, "uninstrumented_step_s": found.median, "uninstrumented_ci95": found.ci95}
    return step.model_copy(update=update)
