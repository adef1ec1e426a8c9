"""auto: the best plan when communication slows computation, by search in the step simulator (docs/planner.md).

With contention, no order exists in which a dynamic programme could fix one bucket after the other. The cost of a
collective depends on the others in flight and on the progress of backward, and that on earlier collectives. So the
search tries plans of every family in the simulator itself, and improves the best ones cut by cut.

DDP's buckets are among the candidates. Launches have costs that no model includes, so a plan with fewer buckets wins
when the difference is under 0.0003 of the step per bucket. `auto` is predicted to be slower than DDP's buckets by less
than that for each bucket that it saves, and otherwise never.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from xbench.planning import merge
from xbench.planning.contention import Contention
from xbench.planning.cost import CostCurve, CostFunction, FloatArray
from xbench.planning.merge import named
from xbench.planning.periodic import Period
from xbench.planning.simulate import Buckets, bucket_bytes, share
from xbench.planning.step import Gradient, require_ready_order
from xbench.records import CostModel, Parts

PENALTIES_S = (0.0, 0.5e-3, 1e-3, 2e-3, 4e-3, 8e-3, 16e-3)
UNIFORM = (2, 3, 4, 6, 8, 12, 16, 24, 32)
IMPROVED = 3
"""Number of candidates that are improved."""

MAX_TRIALS = 500
"""Maximum number of simulations for the improvement of one candidate."""

_PER_BUCKET = 3e-4


@dataclass(frozen=True)
class Candidate:
    """A plan and its simulated step; `carrier` and `parts` as in `records.Plan`."""

    name: str
    buckets: Buckets
    step_s: float
    carrier: str | None = None
    parts: Parts | None = None


class CutSearch:
    """Hill climbing on the cuts of contiguous buckets: drop a cut, move it or add one while that improves the plan.

    A plan of n gradients in ready order is a list of cut positions. Two dtypes are always separated by a cut.
    """

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


class Search:
    """Search over plans of one step on one link, in the simulator. Times [s] are since the start of backward."""

    def __init__(
        self,
        gradients: Sequence[Gradient],
        cost: CostModel,
        *,
        backward_s: float,
        optimizer_s: float,
        early_update: bool = True,
        contention: Contention | None = None,
        others: Sequence[tuple[str, Buckets]] = (),
    ) -> None:
        """`gradients` are undisturbed and in ready order; `others` are further candidates by name.
        `early_update`: whether a bucket's parameters are updated on its arrival.

        Raises ValueError when the gradients are not in ready order.
        """
        require_ready_order(gradients)
        self.gradients = list(gradients)
        self.cost = cost
        self.curve = CostCurve.of(cost)
        self.contention = contention or Contention.none()
        self.backward_s = backward_s + self.contention.hooks_s(gradients)
        self.optimizer_s = optimizer_s
        self._early_update = early_update
        self._others = list(others)
        self._ready_s = self.contention.ready_s(gradients)
        self._hill = CutSearch(gradients)
        self._carried = self._hill.carried

    def seconds(self, buckets: Buckets) -> float:
        """Time from the start of backward to the end of the step [s]."""
        return self._share(buckets).end_s

    def _share(self, buckets: Buckets) -> Period:
        complete_s = [max(self._ready_s[index] for index in bucket) for bucket in buckets]
        return self._period(complete_s, bucket_bytes(self.gradients, buckets))

    def _seconds_of_cuts(self, cuts: Sequence[int]) -> float:
        edges = [0, *cuts, len(self.gradients)]
        complete_s = [self._ready_s[last - 1] for last in edges[1:]]
        nbytes = [self._carried[b] - self._carried[a] for a, b in itertools.pairwise(edges)]
        return self._period(complete_s, nbytes).end_s

    def _period(self, complete_s: Sequence[float], nbytes: Sequence[int]) -> Period:
        return share(
            complete_s, nbytes, self.curve, self.contention,
            backward_s=self.backward_s, optimizer_s=self.optimizer_s, early_update=self._early_update,
        )  # fmt: skip

    def candidates(self) -> list[Candidate]:
        """One candidate per distinct plan of every family, the best first."""
        found: dict[tuple[tuple[int, ...], ...], Candidate] = {}
        for name, buckets in self._families():
            key = tuple(tuple(bucket) for bucket in buckets)
            if key not in found:
                found[key] = Candidate(name, buckets, self.seconds(buckets))
        return sorted(found.values(), key=lambda candidate: self._worth(candidate.step_s, len(candidate.buckets)))

    def best(self) -> Candidate:
        """Return the best plan found."""
        starts = self.candidates()
        finished = [starts[0], *(self._improved(candidate) for candidate in starts[:IMPROVED])]
        return min(finished, key=lambda candidate: self._worth(candidate.step_s, len(candidate.buckets)))

    def _families(self) -> Iterable[tuple[str, Buckets]]:
        gradients = self.gradients
        yield from self._others
        yield named(merge.ddp, gradients)
        yield named(merge.single, gradients)
        yield named(merge.wfbp, gradients)
        yield named(merge.mgwfbp, gradients, self.cost.alpha_s, self.cost.beta_s_per_byte)
        exact_name, exact = named(merge.optimal, gradients, self.curve)
        yield exact_name, exact
        for parts in UNIFORM:
            yield f"uniform in {parts}", merge.ddp_assignment(gradients, [math.ceil(self._carried[-1] / parts)])
        stretch = self._share(exact).computed[0][1] / self.backward_s if self.backward_s > 0 else 1.0
        loaded = [replace(gradient, ready_s=gradient.ready_s * stretch) for gradient in gradients]
        for penalty_s in PENALTIES_S:
            yield f"{exact_name} + {penalty_s * 1e3:g} ms", merge.optimal(loaded, self._charged(penalty_s))

    def _charged(self, penalty_s: float) -> CostFunction:
        """T during computation, plus `penalty_s` for each collective."""

        def seconds(nbytes: FloatArray, /) -> FloatArray:
            slower = np.maximum(1.0, self.contention.collective_slowdown(nbytes.ravel())[1]).reshape(nbytes.shape)
            return np.where(nbytes > 0, self.curve(nbytes) * slower + penalty_s, 0.0)

        return seconds

    def _worth(self, seconds: float, buckets: int) -> float:
        return seconds * (1.0 + _PER_BUCKET * buckets)

    def _improved(self, start: Candidate) -> Candidate:
        """Improve the cuts by hill climbing. A plan that is not contiguous is returned unchanged."""
        cuts = self._hill.cuts(start.buckets)
        if cuts is None:
            return start

        def worth(other: list[int]) -> float:
            return self._worth(self._seconds_of_cuts(other), len(other) + 1)

        cuts, _ = self._hill.climb(cuts, self._worth(start.step_s, len(cuts) + 1), worth, MAX_TRIALS)
        return Candidate(f"{start.name}, improved", self._hill.buckets(cuts), self._seconds_of_cuts(cuts))
