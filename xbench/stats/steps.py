"""How long a step of several ranks takes.

A step is over when the last rank is done with it. So it takes from when the last rank was done with the step before it
until the last is done with it. That is not the longest that any rank took for it: where ranks wait for each other in
the middle of their steps, as they do where gradients travel on into the next one, the rank that was ahead in one step
waits in the next, and the other is ahead then. Each step is long for one of them, and the longest times add up to more
than the steps took.

Ranks that never wait for each other are another matter: those of steps without communication. There the longest that
any rank took is what the step would take if they did.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise


def steps_of_all(per_rank_s: Sequence[Sequence[float]]) -> list[float]:
    """Time of each step [s], from each rank's own times of the same steps [s], begun together and one after the other.

    They add up to what the slowest rank took for all of them. Raises ValueError when ranks took different numbers of
    steps.
    """
    ends_s = [list(accumulate(steps_s, initial=0.0)) for steps_s in per_rank_s]
    last_s = [max(ends) for ends in zip(*ends_s, strict=True)]
    return [after - before for before, after in pairwise(last_s)]


def longest_steps(per_rank_s: Sequence[Sequence[float]]) -> list[float]:
    """The longest time [s] of any rank of each step, for ranks that do not wait for each other. Raises as above."""
    return [max(times) for times in zip(*per_rank_s, strict=True)]
