"""Progress of jobs that share devices, counted over the time in which all of them ran.

Jobs that share devices do not begin and end together. While the slower one finishes its last steps, the other has ended
and no longer disturbs it. Only the window in which every job ran steps is shared, so steps are counted inside that
window, with fractions at its edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Window:
    """Progress of each job inside the common window. Times [s] are on the clock of the given stamps."""

    start_s: float
    end_s: float
    rates_per_s: tuple[float, ...]
    """Steps a second, by job."""
    steps: tuple[float, ...]
    """Steps completed inside the window, by job; fractional at its edges."""

    @property
    def length_s(self) -> float:
        """Length of the window [s]."""
        return self.end_s - self.start_s


def overlap_rates(boundaries_s: Sequence[Sequence[float]]) -> Window:
    """Each job's rate over the window in which all jobs ran steps.

    `boundaries_s[j]`: the increasing stamps of job j's step ends on a common clock, preceded by the start of its first
    timed step; n steps are n + 1 stamps. The window goes from the latest first stamp to the earliest last one. A step
    that crosses an edge counts by the share of its time that lies inside.

    Raises ValueError for no jobs, for a job of fewer than two stamps, stamps that do not increase or are not finite,
    and jobs that never ran at the same time.
    """
    if not boundaries_s:
        raise ValueError("a window needs at least one job")
    jobs = [np.asarray(stamps, dtype=np.float64) for stamps in boundaries_s]
    for job, stamps in enumerate(jobs):
        if len(stamps) < 2:
            raise ValueError(f"job {job} has {len(stamps)} step boundaries, and one step needs two")
        if not np.all(np.isfinite(stamps)) or not np.all(np.diff(stamps) > 0):
            raise ValueError(f"the step boundaries of job {job} do not increase")
    start_s = max(float(stamps[0]) for stamps in jobs)
    end_s = min(float(stamps[-1]) for stamps in jobs)
    if end_s <= start_s:
        raise ValueError(f"the jobs never ran together: the last began at {start_s} s, the first ended at {end_s} s")
    steps = []
    for stamps in jobs:
        done_at_start, done_at_end = np.interp([start_s, end_s], stamps, np.arange(len(stamps)))
        steps.append(float(done_at_end - done_at_start))
    length_s = end_s - start_s
    return Window(start_s, end_s, tuple(count / length_s for count in steps), tuple(steps))


def weighted_progress(rates_per_s: Sequence[float], alone_step_s: Sequence[float]) -> float:
    """Σ_j rate_j · s_j: seconds of lone-job work done in each second of sharing (1 = as good as one job at a time).

    Steps of different jobs are different amounts of work, and adding steps (or samples) a second would reward a
    preference for the cheap job. Measured in the time s_j that it takes with the devices to itself, every step has the
    same worth: rate_j · s_j is the fraction of its lone speed that job j keeps. Jobs that take turns in any proportion,
    without overlap, give 1; two that do not disturb each other at all give 2. This is the weighted speed-up of Snavely
    & Tullsen 2000.

    `alone_step_s`: each job's step time [s] with the devices to itself. Raises ValueError for no jobs, lists of unequal
    length, a negative rate or a step time that is not above zero.
    """
    if not rates_per_s or len(rates_per_s) != len(alone_step_s):
        raise ValueError(f"{len(rates_per_s)} rates and {len(alone_step_s)} lone step times cannot be combined")
    if not all(rate >= 0 for rate in rates_per_s) or not all(step_s > 0 for step_s in alone_step_s):
        raise ValueError(f"rates {list(rates_per_s)} with lone step times {list(alone_step_s)} s are no progress")
    return float(sum(rate * step_s for rate, step_s in zip(rates_per_s, alone_step_s, strict=True)))
