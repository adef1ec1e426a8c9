"""Discretised two-dimensional least attained service (Gu et al., Tiresias, NSDI 2019): who has had least runs first.

Service is GPUs × time (hence two-dimensional). `attained` says what levels and promotion are; here the lower level goes
first. By default a job falls after one and after ten GPU hours, and rises after waiting eight times what it ran. (The
authors' published simulator has 3250 and 7200 GPU seconds: `las:thresholds=3250+7200`.)
"""

from __future__ import annotations

from collections.abc import Sequence

from xbench.cluster.policies.attained import Attained

THRESHOLDS = (3600.0, 36000.0)


class Las(Attained):
    """See the module. `thresholds` [GPU s], ascending; `promote`: how often what it ran a job waits at most; 0: ever.

    Raises SpecError, as `Attained` does.
    """

    def __init__(self, thresholds: Sequence[float] = THRESHOLDS, promote: float = 8.0) -> None:
        super().__init__(thresholds, promote)

    def rank(self, level: int) -> float:
        """The level itself."""
        return level
