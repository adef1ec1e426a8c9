"""Which buckets, in which parts and order, for a step whose gradients travel on into the next forward pass.

**`dear`**: buckets of every family (each schedule's own, uniform sizes) are tried in the simulator, and the best of
them improved cut by cut. The paper tunes one size for all buckets by Bayesian optimisation on the running job; here
nothing runs, and sizes may differ.

**`priority`**: small tensors are merged with those next to them in ready order, and large buckets are cut. So families
of buckets, times sizes of parts, are tried with each rank's free choice; of the best few an order is fixed for all.

**An order that forgives.** A part that is late holds back all that follow it in the order, though they are ready. So
orders are also made as if all buckets were complete a little later than measured (a device that computes more slowly
beside the link's work than was thought, or a link that is faster), which puts nothing urgent so early that it must be
ready to the moment. Each is judged by the mean of two steps: one in which gradients are ready as measured, and one in
which they are late. Ready order itself stands for election, and no order is taken that is predicted to be slower than
it when all is on time. So do orders that let the link rest: so many parts in ready order, and the others as they are
needed, though the most urgent of them is ready last, as an embedding is.

**Credit.** In a fixed order nothing passes what waits, so what credit limits is only how many parts are in flight: one
at a time, or as many as are ready, whichever the measured contention says is faster; without a difference, as many as
are ready, because then nobody has to be there when a part arrives to launch the next.

**Variations.** How long backward takes beside the link's work decides how much can go before what is urgent, and is
what a model knows least; what a launch costs a step of a few milliseconds it hardly knows. So a trial is given orders,
too, that let the link rest sooner than the best, and the second best buckets with the same (`variations`).

Steps compare by time × (1 + 0.00015 · collectives), as in `auto`: launches have costs that no model sees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from xbench.modes import mode_info, mode_that_travels
from xbench.planning import merge
from xbench.planning.contention import Contention
from xbench.planning.cost import CostCurve
from xbench.planning.gradients import Gradient
from xbench.planning.local_search import CutSearch
from xbench.planning.merge import named
from xbench.planning.next_forward import NetworkModel, as_step, forward_layers, part_sizes
from xbench.planning.simulate import Buckets, Step, bucket_bytes
from xbench.planning.step import StepModel
from xbench.records import CostModel, Layer, Parts
from xbench.units import format_bytes

HALVES, PARTS = mode_that_travels("halves"), mode_that_travels("parts")

IMPROVED = 2
"""How many candidates of `dear` are improved."""

MAX_TRIALS = 120
"""Simulations spent on improving one candidate."""

ORDERED = 4
"""For how many candidates of `priority` orders are tried."""

MARGINS = (0.0, 0.03, 0.1)
"""By which shares of their time gradients are taken to be late when an order is made."""

LATE = 0.05
"""By which share of their time gradients are late in the step by which orders are judged beside the one on time."""

KEPT_BACK = 24
"""From how many places in ready order on parts are kept back until what is more urgent has gone."""

SOONER = 2
"""How many orders that let the link rest sooner than the best of them are worth a trial."""

MAX_PARTS = 512
"""A cut into more parts than this, and than there are buckets, is not tried."""

_UNIFORM = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_QUICK_UNIFORM = (4, 8, 16)
_PACKED = (2**16, 2**18, 2**20, 2**22, 2**24)
_PARTS = (2**18, 2**20, 2**22, 2**24, 2**26)
_QUICK_PARTS = (2**22,)
_ALIGNED = 16
_PER_COLLECTIVE = 1.5e-4


@dataclass(frozen=True)
class NextForward:
    """The best found of a mode: its step, counted from the start of backward, and what makes it."""

    mode: str
    name: str
    step: Step
    buckets: Buckets
    parts: Parts | None = None

    @property
    def collectives(self) -> int:
        """How many are launched in a step."""
        return 2 * len(self.buckets) if self.parts is None else len(self.parts.order)

    @property
    def worth_s(self) -> float:
        """What steps compare by [s]; see the module."""
        return worth_s(self.step.step_s, self.collectives)


@dataclass(frozen=True)
class _Cut:
    """Buckets and their parts, and what they are worth [s] with a free choice of what goes next."""

    name: str
    buckets: Buckets
    part_bytes: int
    parts: list[list[int]]
    worth_s: float


def worth_s(step_s: float, collectives: int) -> float:
    """A step [s] with the price of launching so many collectives; see the module."""
    return step_s * (1.0 + _PER_COLLECTIVE * collectives)


class NextForwardSearch:
    """Plans of one profile on one link. Not `thorough`: fewer candidates, nothing improved, timelines without names.

    Where no contention was measured but ready times under traffic were, those count, as in every other prediction:
    buckets are of `step.gradients` here, which then are in that order. Raises ValueError as `forward_layers` does, and
    when gradients are not in ready order.
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
        """The best `dear` and the best `priority`, the better first."""
        return sorted([self.dear(), self.priority()], key=lambda one: one.worth_s)

    def dear(self) -> NextForward:
        """The best `dear` found."""
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
        """The best `priority` found."""
        return self._priorities[0]

    @cached_property
    def _priorities(self) -> list[NextForward]:
        """The best order of each of the best cuts, the best first."""
        cuts = sorted(self._cuts(), key=lambda cut: cut.worth_s)
        found = [self._ordered(cut) for cut in cuts[: ORDERED if self._thorough else 1]]
        return sorted(found, key=lambda one: one.worth_s)

    def variations(self) -> list[NextForward]:
        """What a trial may try beside the best `priority`; see the module. May hold that one too, and one twice."""
        best, *others = self._priorities
        second = [one for one in others if one.buckets != best.buckets][:1]
        return second + [order for cut in (best, *second) for order in self._sooner(cut)]

    def _sooner(self, cut: NextForward) -> list[NextForward]:
        """The best order that lets the link rest, and those that do so a little sooner."""
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
        """The step of `mode` with these buckets of `step.gradients`; `parts` are what `priority` makes of them.

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
        """Buckets to try: fewer first, so that of equal steps the one with fewer launches is kept."""
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
        """Families of buckets times sizes of parts, each once, with a free choice and two parts in flight."""
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
        """The cut with the order and the credit that are best on time and late; see the module."""
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
        """Orders in which a free choice launches the parts, were gradients a little late; and orders that keep back.

        A free choice never lets the link rest, and so has something large under way when the most urgent is ready.
        """
        for credit in (0.0, 2.0 * cut.part_bytes) if self._thorough else (2.0 * cut.part_bytes,):
            for margin in MARGINS if self._thorough else MARGINS[1:2]:
                _, _, period = self._net.priority(cut.buckets, cut.parts, credit_bytes=credit, late=margin)
                yield tuple(part for part, _, _ in period.sent)
        if self._thorough:
            yield from self._resting(cut.buckets, cut.parts)

    def _resting(self, buckets: Buckets, parts: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """Orders that let the link rest for what is urgent, those that do so soonest first."""
        urgent = self._net.urgency(buckets, parts)
        count = len(urgent)
        return [
            (*range(first), *sorted(range(first, count), key=urgent.__getitem__))
            for first in sorted({round(share * count / KEPT_BACK) for share in range(KEPT_BACK)})
        ]


def best_next_forward(
    layers: Sequence[Layer], step: StepModel, cost: CostModel, *, contention: Contention | None = None
) -> list[NextForward]:
    """The best `dear` and the best `priority` found for a profile, the better first. Raises as the search does."""
    return NextForwardSearch(layers, step, cost, contention=contention).best()


def packed(gradients: Sequence[Gradient], limit_bytes: int) -> Buckets:
    """Neighbours in ready order in buckets of at most so many bytes; a tensor with more has a bucket of its own."""
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
