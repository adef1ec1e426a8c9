"""Steady state: the jobs of a trace that count in the averages, and a check for a growing queue.

A mean over a trace describes a policy only if it does not depend on the trace's length. If jobs come faster than a
policy serves them, the number of unfinished jobs grows as long as they come, and so does the mean. It grows at first
under every policy, because the cluster is empty when the trace begins.

**Growth.** Unfinished jobs (waiting or running) are averaged over the middle fifth and over the last fifth of the time
in which jobs come. If the queue grows in proportion to time, the second mean is 1.8 times the first. From `GROWN` on
the queue counts as growing.
**Window.** Averages may cover only the jobs A to B by arrival. That leaves out the filling at the beginning and the
emptying at the end (as Gavel's and Blox' evaluations do). All jobs are still simulated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from xbench.cluster.simulated import Finished
from xbench.errors import SpecError

Window = tuple[int, int]
"""The first and the last job that count, by arrival, from 1 on."""

GROWN = 1.5
"""Ratio of unfinished jobs at the end to those in the middle, from which the queue counts as growing."""

MIN_GROWTH = 5.0
"""Least difference of these numbers. Below it, a ratio of small numbers says nothing."""


def parse_window(text: str) -> Window:
    """A window from '1001-2000'. Raises SpecError for invalid text."""
    match = re.fullmatch(r"\s*(\d{1,9})\s*-\s*(\d{1,9})\s*", text)
    if match is None:
        raise SpecError(f"{text!r} is not a window of jobs", hint="write 1001-2000, numbers of jobs by arrival")
    first, last = int(match[1]), int(match[2])
    if first < 1:
        raise SpecError(f"{text!r} begins before the first job", hint=f"write 1-{max(1, last)}")
    if last < first:
        raise SpecError(f"{text!r} ends before it begins", hint=f"write {last}-{first}")
    return first, last


def check_window(window: Window, jobs: int) -> None:
    """Raise SpecError for a window beyond a trace of `jobs` jobs."""
    first, last = window
    if last > jobs:
        raise SpecError(
            f"the window {first}-{last} ends after the last of {jobs} jobs",
            hint=f"write {first if first <= jobs else 1}-{jobs}",
        )


def unfinished(finished: Sequence[Finished], last_s: float) -> tuple[float, float]:
    """Mean numbers of unfinished jobs in the middle and in the last fifth of the arrivals until `last_s` [s].

    Zeros if all jobs come at once.
    """
    arrivals_s = np.array([job.job.arrival_s for job in finished])
    ends_s = np.array([job.finished_s for job in finished])
    first_s = float(arrivals_s.min())
    span_s = last_s - first_s
    if span_s <= 0:
        return 0.0, 0.0

    def mean(low: float, high: float) -> float:
        from_s, to_s = first_s + low * span_s, first_s + high * span_s
        there_s = np.clip(ends_s, from_s, to_s) - np.clip(arrivals_s, from_s, to_s)
        return float(there_s.sum()) / (to_s - from_s)

    return mean(0.4, 0.6), mean(0.8, 1.0)


def grows(middles: Sequence[float], ends: Sequence[float]) -> bool:
    """True if the queue still grows, from `unfinished` of each seed."""
    middle, end = sum(middles), sum(ends)
    return end >= GROWN * middle and end - middle >= MIN_GROWTH * len(ends)
