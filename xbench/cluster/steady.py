"""Steady state: which jobs of a trace count in the averages, and whether the queue still grows while jobs come.

A mean over a trace describes a policy only where it does not depend on how long the trace is. Where jobs come faster
than a policy serves them, the number of unfinished jobs grows for as long as they come, and so does the mean. It grows
at first under every policy, because the cluster is empty when the trace begins.

**Growth.** Unfinished jobs, those that wait and those that run, are averaged over the middle fifth and over the last
fifth of the time in which jobs come. Under a queue that grows in proportion to time the second is 1.8 times the first;
from `GROWN` on the queue is said to grow.
**Window.** Averages may be taken over the jobs A to B by arrival alone, which leaves out the filling at the beginning
and the emptying at the end (as Gavel's and Blox' evaluations do). All jobs are simulated all the same.
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
"""Unfinished jobs at the end over those in the middle."""

MIN_GROWTH = 5.0
"""Further jobs at the end, below which a ratio of small numbers says nothing."""


def parse_window(text: str) -> Window:
    """A window from '1001-2000'. Raises SpecError for what is none."""
    found = re.fullmatch(r"\s*(\d{1,9})\s*-\s*(\d{1,9})\s*", text)
    if found is None:
        raise SpecError(f"{text!r} is no window of jobs", hint="write 1001-2000, numbers of jobs by arrival")
    first, last = int(found[1]), int(found[2])
    if first < 1:
        raise SpecError(f"{text!r} begins before the first job", hint=f"write 1-{max(1, last)}")
    if last < first:
        raise SpecError(f"{text!r} ends before it begins", hint=f"write {last}-{first}")
    return first, last


def check_window(window: Window, jobs: int) -> None:
    """Raise SpecError for a window that is not within a trace of so many jobs."""
    first, last = window
    if last > jobs:
        raise SpecError(
            f"the window {first}-{last} ends after the last of {jobs} jobs",
            hint=f"write {first if first <= jobs else 1}-{jobs}",
        )


def unfinished(finished: Sequence[Finished], last_s: float) -> tuple[float, float]:
    """Mean numbers of unfinished jobs in the middle and in the last fifth of the arrivals until `last_s` [s].

    Zeros where all jobs come at once.
    """
    arrivals_s = np.array([one.job.arrival_s for one in finished])
    ends_s = np.array([one.finished_s for one in finished])
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
    """Whether the queue still grows, from `unfinished` of each seed."""
    middle, end = sum(middles), sum(ends)
    return end >= GROWN * middle and end - middle >= MIN_GROWTH * len(ends)
