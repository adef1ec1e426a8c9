"""Duration of a step of several ranks.

A step ends when the last rank has finished it. So it lasts from the end of the previous step on the last rank to its
own end on the last rank. That is not the longest time of any rank. If ranks wait for each other in the middle of their
steps, because gradients carry over into the next one, the rank that was ahead in one step waits in the next. Then each
step is long for another rank, and the longest times add up to more than the steps took.

Ranks of steps without communication never wait for each other. There the longest time of any rank is what the step
would take if they did.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise


def steps_of_all(per_rank_s: Sequence[Sequence[float]]) -> list[float]:
    """Time of each step [s], from each rank's own times of the same steps [s], begun together.

    They add up to the time of the slowest rank for all of them. Raises ValueError if ranks took different numbers of
    steps.
    """
    ends_s = [list(accumulate(steps_s, initial=0.0)) for steps_s in per_rank_s]
    last_s = [max(ends) for ends in zip(*ends_s, strict=True)]
    return [after - before for before, after in pairwise(last_s)]


def longest_steps(per_rank_s: Sequence[Sequence[float]]) -> list[float]:
    """Longest time [s] of any rank in each step, for ranks that do not wait for each other. Raises as above."""
    return [max(times) for times in zip(*per_rank_s, strict=True)]
