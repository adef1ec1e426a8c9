"""Discretised two-dimensional least attained service (Gu et al., Tiresias, NSDI 2019): the least served job runs first.

Service is GPUs × time (hence two-dimensional). `attained` defines levels and promotion; here the lower level runs
first. By default a job falls after one and after ten GPU hours, and rises after waiting eight times as long as it ran.
(The authors' published simulator has 3250 and 7200 GPU seconds: `las:thresholds=3250+7200`.)
"""

from __future__ import annotations

from collections.abc import Sequence

from xbench.cluster.policies.attained import Attained

THRESHOLDS = (3600.0, 36000.0)


class Las(Attained):
    """The policy. `thresholds` [GPU s], ascending; `promote`: longest wait, in times of its running time; 0: no limit.

    Raises SpecError, as `Attained` does.
    """

    def __init__(self, thresholds: Sequence[float] = THRESHOLDS, promote: float = 8.0) -> None:
        super().__init__(thresholds, promote)

    def rank(self, level: int) -> float:
        """The level itself."""
        return level
