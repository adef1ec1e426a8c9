"""Search for the buckets, parts and order of a step that still sends gradients during the next forward pass.

`dear`: the simulator tries buckets of every family, and the best of them are improved cut by cut. `priority`: families
of buckets times sizes of parts are tried with each rank's free choice, with two parts in flight. The order of the best
one is then fixed for all ranks. The order of a choice with one part in flight, or ready order, is taken where it is
predicted to be faster. In a fixed order no part passes a waiting one, so credit only limits the parts in flight: one at
a time, or as many as are ready. Without a difference it is as many as are ready, because then no thread must react to
an arrival to launch the next part.

Steps compare by time × (1 + 0.00015 · collectives), as in `auto`: launches have costs that no model includes.
docs/planner.md lists the refinements that this search had, and what each of them gained.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from xbench.modes import mode_info, mode_that_travels
from xbench.planning import merge
from xbench.planning.auto import Candidate, CutSearch
from xbench.planning.contention import Contention
from xbench.planning.cost import CostCurve
from xbench.planning.merge import named
from xbench.planning.next_forward import NetworkModel, as_step, forward_layers, part_sizes
from xbench.planning.simulate import Buckets, Step, bucket_bytes
from xbench.planning.step import Gradient, StepModel
from xbench.records import CostModel, Layer, Parts
from xbench.text import counted
from xbench.units import format_bytes

HALVES, PARTS = mode_that_travels("halves"), mode_that_travels("parts")

IMPROVED = 2
"""Number of `dear` candidates that are improved."""

MAX_TRIALS = 120
"""Maximum number of simulations for the improvement of one candidate."""

MAX_PARTS = 512
"""Maximum number of parts of a cut; cuts with at most one part per bucket have no limit."""

_UNIFORM = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_PACKED = (2**20, 2**22, 2**24)
_PARTS = (2**18, 2**20, 2**22, 2**24, 2**26)
_ALIGNED = 16
_PER_COLLECTIVE = 1.5e-4


class _Cut(NamedTuple):
    """Buckets and their parts. Under a free choice of the next part they go in this order, in a step of this worth."""

    worth_s: float
    name: str
    buckets: Buckets
    part_bytes: int
    parts: list[list[int]]
    order: list[int]


def worth_s(step_s: float, collectives: int) -> float:
    """A step [s] with the price of launching so many collectives."""
    return step_s * (1.0 + _PER_COLLECTIVE * collectives)


class NextForwardSearch:
    """Search over plans of one profile on one link.

    Without measured contention, ready times under traffic are used where they were measured, as in every other
    prediction. Buckets are of `step.gradients` of this object, in that ready order. Raises ValueError as
    `forward_layers` does, and when gradients are not in ready order.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        step: StepModel,
        cost: CostModel,
        contention: Contention | None = None,
        halves: tuple[CostModel, CostModel] | None = None,
    ) -> None:
        if contention is None and step.loaded is not None:
            step = replace(step, gradients=step.loaded, backward_s=max(step.backward_s, step.loaded[-1].ready_s))
        elif contention is not None:
            step = replace(step, forward_s=step.forward_s + contention.meeting_s)
        self.step = step
        self._cost = cost
        self._curve = CostCurve.of(cost)
        self._hill = CutSearch(step.gradients)
        curves = None if halves is None else (CostCurve.of(halves[0]), CostCurve.of(halves[1]))
        self._net = NetworkModel(forward_layers(layers, step), step, self._curve, contention, curves)

    def dear(self) -> Candidate:
        """Return the best `dear` plan found."""
        found = [(self._dear_worth_s(buckets), name, buckets) for name, buckets in self._families()]
        found.sort(key=lambda one: one[0])
        for start_s, name, buckets in found[:IMPROVED]:
            cuts = self._hill.cuts(buckets)
            if cuts is not None:
                cuts, climbed_s = self._hill.climb(
                    cuts, start_s, lambda other: self._dear_worth_s(self._hill.buckets(other)), MAX_TRIALS
                )
                found.append((climbed_s, f"{name}, improved", self._hill.buckets(cuts)))
        _, name, buckets = min(found, key=lambda one: one[0])
        return Candidate(name, buckets, self.step_of(HALVES, buckets).step_s, HALVES)

    def priority(self) -> Candidate:
        """Return the best `priority` plan found."""
        cut = min(self._cuts(), key=lambda cut: cut.worth_s)
        count = len(cut.order)
        _, _, one_by_one = self._net.priority(cut.buckets, cut.parts, credit_bytes=0.0)
        orders = (cut.order, [part for part, _, _ in one_by_one.sent], range(count))
        best_s, best = math.inf, Parts(nbytes=cut.part_bytes, order=cut.order)
        for order, credit in itertools.product(orders, (math.inf, 0.0)):
            _, _, period = self._net.priority(cut.buckets, cut.parts, credit_bytes=credit, order=order)
            if period.end_s < best_s * (1 - 1e-9):
                best_s = period.end_s
                best = best.model_copy(update={"order": list(order), "credit_bytes": 0 if credit == 0 else None})
        name = f"{cut.name}, in {counted(count, 'part')} of at most {format_bytes(cut.part_bytes)}"
        name += ", one under way at a time" if best.credit_bytes == 0 else ""
        return Candidate(name, cut.buckets, self.step_of(PARTS, cut.buckets, best).step_s, PARTS, best)

    def step_of(self, mode: str, buckets: Buckets, parts: Parts | None = None) -> Step:
        """The step of `mode` with these buckets of `step.gradients`; `parts` are the parts of `priority`.

        Raises ValueError for `priority` without parts, and for buckets that do not hold each gradient exactly once.
        """
        if mode_info(mode).travels == "halves":
            return as_step(*self._net.dear(buckets, detailed=True))
        if parts is None:
            raise ValueError(f"{mode} is simulated with parts, and the plan has none")
        sizes = [part_sizes(nbytes, parts.nbytes) for nbytes in bucket_bytes(self.step.gradients, buckets)]
        credit = math.inf if parts.credit_bytes is None else float(parts.credit_bytes)
        return as_step(*self._net.priority(buckets, sizes, credit_bytes=credit, order=parts.order, detailed=True))

    def _dear_worth_s(self, buckets: Buckets) -> float:
        _, _, period = self._net.dear(buckets)
        return worth_s(period.end_s, 2 * len(buckets))

    def _families(self) -> Iterator[tuple[str, Buckets]]:
        """Buckets to try, fewer first: among equal steps, the one with fewer launches is kept."""
        gradients = self.step.gradients
        yield named(merge.single, gradients)
        for count in _UNIFORM:
            limit = max(1, math.ceil(self.step.grad_bytes / count))
            yield f"uniform in {count}", merge.ddp_assignment(gradients, [limit])
        yield named(merge.mgwfbp, gradients, self._cost.alpha_s, self._cost.beta_s_per_byte)
        yield named(merge.ddp, gradients)
        yield named(merge.optimal, gradients, self._curve)
        yield named(merge.wfbp, gradients)

    def _cuts(self) -> Iterator[_Cut]:
        """Combinations of bucket families and part sizes, with a free choice and two parts in flight."""
        gradients = self.step.gradients
        merged = [(f"packed to {format_bytes(limit)}", packed(gradients, limit)) for limit in _PACKED]
        for name, buckets in [*merged, *self._families()]:
            sizes = bucket_bytes(gradients, buckets)
            whole = _ALIGNED * max(1, math.ceil(max(sizes) / _ALIGNED))
            for most in [*(size for size in _PARTS if size < whole), whole]:
                parts = [part_sizes(nbytes, most) for nbytes in sizes]
                count = sum(len(cut) for cut in parts)
                if count > MAX_PARTS and count > len(buckets):
                    continue
                _, _, period = self._net.priority(buckets, parts, credit_bytes=2 * most)
                order = [part for part, _, _ in period.sent]
                yield _Cut(worth_s(period.end_s, count), name, buckets, most, parts, order)


def packed(gradients: Sequence[Gradient], limit_bytes: int) -> Buckets:
    """Buckets of neighbours in ready order with at most `limit_bytes`; a larger tensor has its own bucket."""
    buckets: Buckets = []
    filled = 0
    for index, gradient in enumerate(gradients):
        fits = bool(buckets) and filled + gradient.nbytes <= limit_bytes
        if fits and gradient.dtype == gradients[index - 1].dtype:
            buckets[-1].append(index)
            filled += gradient.nbytes
        else:
            buckets.append([index])
            filled = gradient.nbytes
    return buckets
