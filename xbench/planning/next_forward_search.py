"""Search for the buckets, parts and order of a step that still sends gradients during the next forward pass.

**`dear`**: the simulator tries buckets of every family (each schedule's own, uniform sizes). The best of them are
improved cut by cut. The paper tunes one size for all buckets by Bayesian optimisation on the running job. This search
runs no job, and its sizes may differ.

**`priority`**: small tensors are merged with their neighbours in ready order, and large buckets are cut. So families of
buckets times sizes of parts are tried with each rank's free choice. For the best few, an order is fixed for all ranks.

**A robust order.** A late part delays all parts after it in the order, even those that are ready. The device may
compute more slowly during transfers than predicted, or the link may be faster. So orders are also made as if all
buckets were complete a little later than measured. Such an order does not place an urgent part so early that it must be
ready exactly on time. Each order is judged by the mean of two steps: one with gradients ready as measured, and one with
late gradients. Ready order is a candidate too, and no order is taken that is predicted to be slower than it when all
gradients are on time. Some candidates leave the link idle on purpose. They launch some parts in ready order and the
others in the order of need, even if the most urgent part is ready last, as an embedding is.

**Credit.** In a fixed order no part passes a waiting one, so credit only limits the number of parts in flight. The
choice is one at a time, or as many as are ready, whichever is faster under the measured contention. Without a
difference it is as many as are ready, because then no thread must react to an arrival to launch the next part.

**Variations.** The time of backward under traffic decides how much can be sent before the urgent parts, and it is the
least certain part of the model. The launch cost in a step of a few milliseconds is nearly unknown too. So a trial also
gets orders that leave the link idle sooner than the best one, and the second best buckets with such orders
(`variations`).

Steps compare by time × (1 + 0.00015 · collectives), as in `auto`: launches have costs that no model includes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from xbench.modes import mode_info, mode_that_travels
from xbench.planning import merge
from xbench.planning.auto import CutSearch
from xbench.planning.contention import Contention
from xbench.planning.cost import CostCurve
from xbench.planning.merge import named
from xbench.planning.next_forward import NetworkModel, as_step, forward_layers, part_sizes
from xbench.planning.simulate import Buckets, Step, bucket_bytes
from xbench.planning.step import Gradient, StepModel
from xbench.records import CostModel, Layer, Parts
from xbench.units import format_bytes

HALVES, PARTS = mode_that_travels("halves"), mode_that_travels("parts")

IMPROVED = 2
"""Number of `dear` candidates that are improved."""

MAX_TRIALS = 120
"""Maximum number of simulations for the improvement of one candidate."""

ORDERED = 4
"""Number of `priority` candidates for which orders are tried."""

MARGINS = (0.0, 0.03, 0.1)
"""Shares of their ready time by which gradients are assumed late when an order is made."""

LATE = 0.05
"""Share of their ready time by which gradients are late in the second step that judges an order."""

KEPT_BACK = 24
"""Number of evenly spaced positions in ready order from which parts are sorted by urgency."""

SOONER = 2
"""Number of orders proposed for a trial that leave the link idle sooner than the best of them."""

MAX_PARTS = 512
"""Maximum number of parts of a cut; cuts with at most one part per bucket have no limit."""

_UNIFORM = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_QUICK_UNIFORM = (4, 8, 16)
_PACKED = (2**16, 2**18, 2**20, 2**22, 2**24)
_PARTS = (2**18, 2**20, 2**22, 2**24, 2**26)
_QUICK_PARTS = (2**22,)
_ALIGNED = 16
_PER_COLLECTIVE = 1.5e-4


@dataclass(frozen=True)
class NextForward:
    """The best result for a mode: its step, counted from the start of backward, and the plan that gives it."""

    mode: str
    name: str
    step: Step
    buckets: Buckets
    parts: Parts | None = None

    @property
    def collectives(self) -> int:
        """Number of collectives in a step."""
        return 2 * len(self.buckets) if self.parts is None else len(self.parts.order)

    @property
    def worth_s(self) -> float:
        """The value [s] by which steps compare, with the price of launches."""
        return worth_s(self.step.step_s, self.collectives)


@dataclass(frozen=True)
class _Cut:
    """Buckets and their parts, with the worth [s] of their step under a free choice of the next part."""

    name: str
    buckets: Buckets
    part_bytes: int
    parts: list[list[int]]
    worth_s: float


def worth_s(step_s: float, collectives: int) -> float:
    """A step [s] with the price of launching so many collectives."""
    return step_s * (1.0 + _PER_COLLECTIVE * collectives)


class NextForwardSearch:
    """Search over plans of one profile on one link.

    Unless `thorough`, it tries fewer candidates, improves none, and draws timelines without names. Without measured
    contention, ready times under traffic are used where they were measured, as in every other prediction. Buckets are
    of `step.gradients` of this object, in that ready order. Raises ValueError as `forward_layers` does, and when
    gradients are not in ready order.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        step: StepModel,
        cost: CostModel,
        *,
        contention: Contention | None = None,
        thorough: bool = True,
    ) -> None:
        if contention is None and step.loaded is not None:
            step = replace(step, gradients=step.loaded, backward_s=max(step.backward_s, step.loaded[-1].ready_s))
        elif contention is not None:
            step = replace(step, forward_s=step.forward_s + contention.meeting_s)
        self.step = step
        self._cost = cost
        self._curve = CostCurve.of(cost)
        self._thorough = thorough
        self._hill = CutSearch(step.gradients)
        self._net = NetworkModel(forward_layers(layers, step), step, self._curve, contention)

    def best(self) -> list[NextForward]:
        """The best `dear` and the best `priority`, the better one first."""
        return sorted([self.dear(), self.priority()], key=lambda one: one.worth_s)

    def dear(self) -> NextForward:
        """Return the best `dear` plan found."""
        found = [(self._dear_worth_s(buckets), name, buckets) for name, buckets in self._families()]
        found.sort(key=lambda one: one[0])
        for start_s, name, buckets in found[:IMPROVED] if self._thorough else []:
            cuts = self._hill.cuts(buckets)
            if cuts is not None:
                cuts, climbed_s = self._hill.climb(
                    cuts, start_s, lambda other: self._dear_worth_s(self._hill.buckets(other)), MAX_TRIALS
                )
                found.append((climbed_s, f"{name}, improved", self._hill.buckets(cuts)))
        _, name, buckets = min(found, key=lambda one: one[0])
        return NextForward(HALVES, name, self.step_of(HALVES, buckets), buckets)

    def priority(self) -> NextForward:
        """Return the best `priority` plan found."""
        return self._priorities[0]

    @cached_property
    def _priorities(self) -> list[NextForward]:
        """The best order of each of the best cuts, the best first."""
        cuts = sorted(self._cuts(), key=lambda cut: cut.worth_s)
        found = [self._ordered(cut) for cut in cuts[: ORDERED if self._thorough else 1]]
        return sorted(found, key=lambda one: one.worth_s)

    def variations(self) -> list[NextForward]:
        """Orders for a trial besides the best `priority`. The list may contain that one too, and duplicates."""
        best, *others = self._priorities
        second = [one for one in others if one.buckets != best.buckets][:1]
        return second + [order for cut in (best, *second) for order in self._sooner(cut)]

    def _sooner(self, cut: NextForward) -> list[NextForward]:
        """The best order that leaves the link idle, and orders that do so a little sooner."""
        assert cut.parts is not None
        sizes = [part_sizes(nbytes, cut.parts.nbytes) for nbytes in bucket_bytes(self.step.gradients, cut.buckets)]
        orders = self._resting(cut.buckets, sizes)
        resting = [cut.parts.model_copy(update={"order": list(order)}) for order in orders]
        steps = [self.step_of(PARTS, cut.buckets, parts) for parts in resting]
        best = min(range(len(steps)), key=lambda place: steps[place].step_s)
        return [
            replace(cut, name=f"{cut.name}, the link resting sooner", step=steps[place], parts=resting[place])
            for place in range(best, max(-1, best - SOONER - 1), -1)
        ]

    def step_of(self, mode: str, buckets: Buckets, parts: Parts | None = None) -> Step:
        """The step of `mode` with these buckets of `step.gradients`; `parts` are the parts of `priority`.

        Raises ValueError for `priority` without parts, and for buckets that do not hold each gradient exactly once.
        """
        if mode_info(mode).travels == "halves":
            return as_step(*self._net.dear(buckets, detailed=self._thorough))
        if parts is None:
            raise ValueError(f"{mode} is simulated with parts, and the plan has none")
        sizes = [part_sizes(nbytes, parts.nbytes) for nbytes in bucket_bytes(self.step.gradients, buckets)]
        credit = math.inf if parts.credit_bytes is None else float(parts.credit_bytes)
        return as_step(
            *self._net.priority(buckets, sizes, credit_bytes=credit, order=parts.order, detailed=self._thorough)
        )

    def _dear_worth_s(self, buckets: Buckets) -> float:
        _, _, period = self._net.dear(buckets)
        return worth_s(period.end_s, 2 * len(buckets))

    def _families(self) -> Iterator[tuple[str, Buckets]]:
        """Buckets to try, fewer first: among equal steps, the one with fewer launches is kept."""
        gradients = self.step.gradients
        yield named(merge.single, gradients)
        for count in _UNIFORM if self._thorough else _QUICK_UNIFORM:
            limit = max(1, math.ceil(self.step.grad_bytes / count))
            yield f"uniform in {count}", merge.ddp_assignment(gradients, [limit])
        yield named(merge.mgwfbp, gradients, self._cost.alpha_s, self._cost.beta_s_per_byte)
        if self._thorough:
            yield named(merge.ddp, gradients)
            yield named(merge.optimal, gradients, self._curve)
            yield named(merge.wfbp, gradients)

    def _cuts(self) -> Iterator[_Cut]:
        """Distinct combinations of bucket families and part sizes, with a free choice and two parts in flight."""
        seen: set[str] = set()
        for name, buckets in self._merged():
            sizes = bucket_bytes(self.step.gradients, buckets)
            whole = _ALIGNED * max(1, math.ceil(max(sizes) / _ALIGNED))
            for most in [*(size for size in (_PARTS if self._thorough else _QUICK_PARTS) if size < whole), whole]:
                parts = [part_sizes(nbytes, most) for nbytes in sizes]
                count = sum(len(cut) for cut in parts)
                key = str((buckets, parts))
                if key in seen or (count > MAX_PARTS and count > len(buckets)):
                    continue
                seen.add(key)
                _, _, period = self._net.priority(buckets, parts, credit_bytes=2 * most)
                yield _Cut(name, buckets, most, parts, worth_s(period.end_s, count))

    def _merged(self) -> Iterator[tuple[str, Buckets]]:
        gradients = self.step.gradients
        for limit in _PACKED if self._thorough else _PACKED[2:]:
            yield f"packed to {format_bytes(limit)}", packed(gradients, limit)
        yield named(merge.single, gradients)
        if self._thorough:
            for count in (8, 24):
                limit = max(1, math.ceil(self.step.grad_bytes / count))
                yield f"uniform in {count}", merge.ddp_assignment(gradients, [limit])
            yield named(merge.optimal, gradients, self._curve)
            yield named(merge.wfbp, gradients)

    def _ordered(self, cut: _Cut) -> NextForward:
        """The cut with the order and the credit that give the best mean of the step on time and the late step."""
        count = sum(len(parts) for parts in cut.parts)

        def seconds(order: Sequence[int], credit: float, late: float = 0.0) -> float:
            _, _, period = self._net.priority(cut.buckets, cut.parts, credit_bytes=credit, order=order, late=late)
            return period.end_s

        credits = (math.inf, 0.0) if self._thorough else (math.inf,)
        in_turn = tuple(range(count))
        limit_s = min(seconds(in_turn, credit) for credit in credits) * (1 + 1e-12)
        best: tuple[float, tuple[int, ...], float] | None = None
        for order in dict.fromkeys([*self._orders(cut), in_turn]):
            for credit in credits:
                on_time_s = seconds(order, credit)
                if on_time_s > limit_s:
                    continue
                judged_s = (on_time_s + seconds(order, credit, LATE)) / 2 if self._thorough else on_time_s
                if best is None or judged_s < best[0] * (1 - 1e-9):
                    best = judged_s, order, credit
        assert best is not None  # ready order is within its own limit
        _, order, credit = best
        parts = Parts(
            nbytes=cut.part_bytes, order=list(order), credit_bytes=None if credit == math.inf else int(credit)
        )
        said = f"{cut.name}, in {count} parts of at most {format_bytes(cut.part_bytes)}"
        said += ", one under way at a time" if credit == 0 else ""
        return NextForward(PARTS, said, self.step_of(PARTS, cut.buckets, parts), cut.buckets, parts)

    def _orders(self, cut: _Cut) -> Iterator[tuple[int, ...]]:
        """Orders of a free choice with gradients on time and a little late, and orders that leave the link idle.

        Under a free choice the link is never idle, so a large part is often in flight when the most urgent one is
        ready.
        """
        for credit in (0.0, 2.0 * cut.part_bytes) if self._thorough else (2.0 * cut.part_bytes,):
            for margin in MARGINS if self._thorough else MARGINS[1:2]:
                _, _, period = self._net.priority(cut.buckets, cut.parts, credit_bytes=credit, late=margin)
                yield tuple(part for part, _, _ in period.sent)
        if self._thorough:
            yield from self._resting(cut.buckets, cut.parts)

    def _resting(self, buckets: Buckets, parts: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """Orders that leave the link idle for urgent parts, the earliest first."""
        urgent = self._net.urgency(buckets, parts)
        count = len(urgent)
        return [
            (*range(first), *sorted(range(first, count), key=urgent.__getitem__))
            for first in sorted({round(share * count / KEPT_BACK) for share in range(KEPT_BACK)})
        ]


def best_next_forward(
    layers: Sequence[Layer], step: StepModel, cost: CostModel, *, contention: Contention | None = None
) -> list[NextForward]:
    """The best `dear` and the best `priority` found for a profile, the better one first. Raises as the search does."""
    return NextForwardSearch(layers, step, cost, contention=contention).best()


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
