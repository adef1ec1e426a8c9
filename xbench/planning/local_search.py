"""Hill climbing on the cuts of contiguous buckets: drop a cut, move it, add one, as long as something helps.

A plan of n gradients in ready order is the places at which it is cut; two dtypes are always cut apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from xbench.planning.gradients import Gradient
from xbench.planning.simulate import Buckets


class CutSearch:
    """Buckets of these gradients, and what is one change away."""

    def __init__(self, gradients: Sequence[Gradient]) -> None:
        self.carried = [0, *itertools.accumulate(gradient.nbytes for gradient in gradients)]
        self.forced = {j for j in range(1, len(gradients)) if gradients[j].dtype != gradients[j - 1].dtype}
        self._count = len(gradients)

    def cuts(self, buckets: Buckets) -> list[int] | None:
        """Where these buckets are cut; None when they are not contiguous and in ready order."""
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
        """The cuts of the least `worth` found from `cuts` on, whose worth is `best`, after at most so many trials."""
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
        """Plans one change away: the last cuts first, because what is sent last is what a step waits for."""
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
