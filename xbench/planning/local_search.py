"""Hill climbing on the cuts of contiguous buckets: drop a cut, move it or add one while that improves the plan.

A plan of n gradients in ready order is a list of cut positions. Two dtypes are always separated by a cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from xbench.planning.gradients import Gradient
from xbench.planning.simulate import Buckets


class CutSearch:
    """Cuts of these gradients, and the plans that differ by one change."""

    def __init__(self, gradients: Sequence[Gradient]) -> None:
        self.carried = [0, *itertools.accumulate(gradient.nbytes for gradient in gradients)]
        self.forced = {j for j in range(1, len(gradients)) if gradients[j].dtype != gradients[j - 1].dtype}
        self._count = len(gradients)

    def cuts(self, buckets: Buckets) -> list[int] | None:
        """The cut positions of these buckets; None when they are not contiguous and in ready order."""
        flat = [index for bucket in buckets for index in bucket]
        if flat != list(range(self._count)):
            return None
        return list(itertools.accumulate(len(bucket) for bucket in buckets))[:-1]

    def buckets(self, cuts: Sequence[int]) -> Buckets:
        """The buckets between these cuts."""
        return [list(range(a, b)) for a, b in itertools.pairwise([0, *cuts, self._count])]

    def climb(
        self, cuts: list[int], best: float, worth: Callable[[list[int]], float], most_trials: int
    ) -> tuple[list[int], float]:
        """Search from `cuts`, whose worth is `best`. Return the cuts with the least `worth`, and that worth.

        At most `most_trials` plans are tried.
        """
        trials = 0
        improved = True
        while improved and trials < most_trials:
            improved = False
            for other in self.neighbours(cuts):
                trials += 1
                found = worth(other)
                if found < best:
                    cuts, best, improved = other, found, True
                    break
                if trials >= most_trials:
                    break
        return cuts, best

    def neighbours(self, cuts: list[int]) -> Iterable[list[int]]:
        """Plans that differ by one change, the last cuts first: a step waits for the last transfers."""
        edges = [0, *cuts, self._count]
        for place in range(len(cuts) - 1, -1, -1):
            at = cuts[place]
            if at in self.forced:
                continue
            yield cuts[:place] + cuts[place + 1 :]
            for distance in (1, -1, 3, -3, 9, -9):
                if edges[place] < at + distance < edges[place + 2]:
                    yield [*cuts[:place], at + distance, *cuts[place + 1 :]]
        for place in range(len(edges) - 2, -1, -1):
            first, last = edges[place], edges[place + 1]
            if last - first > 1:
                half = (self.carried[first] + self.carried[last]) / 2
                middle = int(np.searchsorted(self.carried, half))
                for at in {min(max(middle, first + 1), last - 1), last - 1}:
                    yield [*cuts[:place], at, *cuts[place:]]
