"""What if the link were faster, the latency shorter, the workers more, the GPU another one?

A plan is made of a compute side (`StepModel`) and of T(M), the time of one all-reduce of M bytes (`CostModel`), both
measured. A what-if rewrites them in the way stated here and nothing else; every number that follows is simulated.

Rate and latency. Of N workers in a ring each link carries 2(N−1)/N of the bytes in 2(N−1) messages (Thakur et al.
2005). So a measured time t of M bytes falls into three parts, taken in this order, none below zero:

    latency  min(t, α), α of the fitted line                        what the 2(N−1) messages took
    wire     min(t − latency, 2(N−1)/N · 8M / measured rate)        what the link itself took
    host     the rest                                               copies and additions of the hosts, congestion

and becomes, for a rate r' and a latency of a message l':

    latency' = α' = 2(N−1)·l'; a part that was below α is stretched when α grows, and capped when it shrinks
    wire'    = wire · rate asked for / r'
    host'    = host

Workers: the model so rewritten is carried over to another ring, message by message (`topology.carried_over`).
Compute: every time of the compute side is multiplied by the scale.

What equals the measured value changes nothing, to the last digit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from xbench.errors import RecordError, SpecError
from xbench.planning.cost import ring
from xbench.planning.step import StepModel
from xbench.planning.topology import Topology, carried_over
from xbench.records import (
    Comparison,
    CostModel,
    CostPoint,
    CostSegment,
    FabricRecord,
    Interval,
    Job,
    Layer,
    Profile,
    StepTimes,
    WorkloadRecord,
    load_measured,
)
from xbench.spec import FabricSpec
from xbench.units import format_rate, format_seconds, parse_rate

MOST_WORKERS = 1_000_000
LONGEST_S = 1e9
"""No part of a step takes longer: thirty years. Times above it could not be added up."""

LEAST_S = 1e-12
"""No collective of a what-if takes less: a cost model's times are above zero."""

FAR = 10.0
"""A rate this many times the measured one, or a fraction of it as small, is far from what was measured."""


@dataclass(frozen=True)
class Measured:
    """One job of a record, with everything that a plan needs. `name` is what errors and notes call the record."""

    name: str
    record: Profile | Comparison
    workload: WorkloadRecord
    layers: tuple[Layer, ...]
    times: StepTimes
    step: StepModel
    cost: CostModel

    @property
    def fabric(self) -> FabricRecord:
        """What the cost model was measured on."""
        return self.record.fabric

    @property
    def measured_step_s(self) -> dict[str, float]:
        """The real step of each single-job mode that was timed and trained the same network; none from a profile."""
        if not isinstance(self.record, Comparison) or len(self.record.jobs) > 1:
            return {}
        return {
            name: mode.step_s.median
            for name, mode in self.record.modes.items()
            if mode.step_s is not None and mode.status == "ok" and (mode.parity is None or mode.parity.ok)
        }


def read(path: Path, job: int | None = None) -> Measured:
    """The measurements in a record, or in a run's folder: see `measured`. Raises RecordError and SpecError."""
    return measured(load_measured(path), str(path), job)


def measured(record: Profile | Comparison, name: str, job: int | None = None) -> Measured:
    """What a plan of `record` starts from; `job` counts from 1 and chooses among those of a comparison.

    Raises RecordError for a record that cannot be planned (no cost model, no step, no gradients, times that are none),
    SpecError for a job that the record does not have, or when it has different ones and none was chosen.
    """
    if isinstance(record, Profile):
        found: list[Profile | Job] = [record]
    else:
        found = list(record.jobs)
    if job is not None and not 1 <= job <= len(found):
        raise SpecError(f"--job {job}: {name!r} holds {_count(len(found), 'job')}", hint="they count from 1")
    twins = all(other.workload == found[0].workload for other in found)
    if job is None and not twins:
        titles = " and ".join(f"{place} ({one.workload.title})" for place, one in enumerate(found, start=1))
        raise SpecError(f"{name!r} holds the jobs {titles}, and a plan is of one", hint="add --job 1")
    if not found:
        raise RecordError(f"{name!r} holds no job: nothing to plan")
    chosen = found[(job or 1) - 1]
    if not chosen.layers:
        raise RecordError(f"{name!r} has no layers with gradients: nothing to plan", hint=_ended(record))
    if chosen.step is None:
        raise RecordError(f"{name!r} says nothing of how long a step takes", hint=_ended(record))
    cost = record.cost_model
    if cost is None:
        where = "one rank" if record.fabric.world_size == 1 else record.fabric.spec
        raise RecordError(
            f"{name!r} has no cost model: it was measured on {where}, where no all-reduce was timed",
            hint=f"xbench profile {chosen.workload.spec.name} --fabric shaped:hosts=2,rate=1gbit times them",
        )
    try:
        _check(chosen.layers, chosen.step, cost)
        step = StepModel.of(chosen.layers, chosen.step)
    except (ValueError, OverflowError) as error:
        raise RecordError(f"{name!r} cannot be planned: {error}") from None
    return Measured(name, record, chosen.workload, tuple(chosen.layers), chosen.step, step, cost)


@dataclass(frozen=True)
class Change:
    """What is asked for in place of what was measured; None: as measured. Raises SpecError for what cannot be.

    `rate_bps` of one link in one direction, `latency_s` of one message, `workers` in all, `ranks_per_host` of them on
    each host (for the record alone), `compute_scale` times the measured compute time (0.25: a GPU four times as fast).
    """

    rate_bps: float | None = None
    latency_s: float | None = None
    workers: int | None = None
    compute_scale: float | None = None
    ranks_per_host: int | None = None

    def __post_init__(self) -> None:
        for option, value, unit, (low, high), example in (
            ("rate", self.rate_bps, " bit/s", (1e3, 1e15), "10gbit"),
            ("latency", self.latency_s, " s", (0.0, 1e3), "50us"),
            ("compute-scale", self.compute_scale, "", (1e-6, 1e6), "0.25"),
        ):
            if value is not None and not low <= value <= high:  # NaN is not, either
                raise SpecError(
                    f"--{option}: {value:g}{unit} is out of range {low:g} to {high:g}",
                    hint=f"as in --{option} {example}",
                )
        if self.workers is not None and not 2 <= self.workers <= MOST_WORKERS:
            near = min(max(self.workers, 2), MOST_WORKERS)
            raise SpecError(
                f"--workers: {self.workers} is out of range 2 to {MOST_WORKERS}: an all-reduce is of 2 at least",
                hint=f"try --workers {near}",
            )


def change_to(fabric: FabricSpec, was: FabricRecord) -> Change:
    """The change that leads from the fabric of a record to another. Raises SpecError when none does."""
    if fabric.name in ("auto", "cluster"):
        raise SpecError(
            f"--fabric {fabric}: it names neither a rate nor a number of workers to plan for",
            hint="write --fabric shaped:hosts=4,rate=10gbit, or --rate and --workers",
        )
    linked = was.rate_bps is not None or was.measured_bps is not None
    if (fabric.name == "shaped") != linked:
        kinds = ("links of a known rate", "no link of a known rate")
        raise SpecError(
            f"the cost model was measured on {was.spec!r} over {was.backend}, which has {kinds[not linked]}, and "
            f"{str(fabric)!r} has {kinds[linked]}: no what-if leads there",
            hint=f"profile it: xbench profile WORKLOAD --fabric {fabric}",
        )
    return Change(
        rate_bps=parse_rate(fabric.rate) if fabric.rate is not None else None,
        workers=fabric.world_size,
        ranks_per_host=fabric.ranks,
    )


@dataclass(frozen=True)
class Scenario:
    """What is planned: measured, with these changes. `cautions` say what the changes cannot know.

    Without a change everything is as it was measured, to the last digit.
    """

    measured: Measured
    step: StepModel
    cost: CostModel
    fabric: FabricRecord
    compute_scale: float = 1.0
    changes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()


def what_if(measured: Measured, change: Change) -> Scenario:
    """The scenario of a change; what equals the measured value changes nothing. Raises SpecError."""
    was = measured.cost
    workers = change.workers if change.workers is not None else was.world_size
    scale = change.compute_scale if change.compute_scale is not None else 1.0
    link = _Link.of(measured)
    alpha_s = was.alpha_s if change.latency_s is None else ring(change.latency_s, 0.0, 0.0, was.world_size)[0]
    slower = 1.0 if change.rate_bps is None else link.asked_bps / change.rate_bps
    same_link = slower == 1.0 and alpha_s == was.alpha_s
    told, cautions = _told_of_the_link(measured, change, link, alpha_s, slower)
    cost = was if same_link else _Rewrite(link.wire_s_per_byte, slower, was.alpha_s, alpha_s).model(was)
    if workers != was.world_size:
        cost = carried_over(cost, Topology("ring"), workers)
        told.append(f"{workers} workers in place of {was.world_size}, in a ring: {_ring(was.world_size, workers)}")
        cautions.append("More workers wait for the slowest of more; this takes all to be as fast as those measured.")
    if scale != 1.0:
        told.append(
            f"compute × {scale:g}: {format_seconds(measured.step.compute_s * scale)} a step in place of "
            f"{format_seconds(measured.step.compute_s)}, every layer alike"
        )
    return Scenario(
        measured=measured,
        step=measured.step if scale == 1.0 else measured.step.scaled(scale),
        cost=cost,
        fabric=measured.fabric if not told else _fabric(measured.fabric, change, cost),
        compute_scale=scale,
        changes=tuple(told),
        cautions=tuple(cautions),
    )


@dataclass(frozen=True)
class _Link:
    """The rate that the fabric was asked for, the one it achieved, and what one byte of a collective took of it."""

    asked_bps: float
    achieved_bps: float
    wire_s_per_byte: float

    @classmethod
    def of(cls, measured: Measured) -> _Link:
        fabric, cost = measured.fabric, measured.cost
        share = ring(0.0, 1.0, 0.0, cost.world_size)[1]
        fitted = 8 * share / cost.beta_s_per_byte if cost.beta_s_per_byte > 0 else math.inf
        achieved = fabric.measured_bps or fabric.rate_bps or fabric.allreduce_bps or fitted
        return cls(fabric.rate_bps or achieved, achieved, 8 * share / achieved)


@dataclass(frozen=True)
class _Rewrite:
    """(M, t) → t' for another rate and latency, as the module says."""

    wire_s_per_byte: float
    slower: float
    alpha_s: float
    new_alpha_s: float

    def time_s(self, nbytes: float, took_s: float) -> float:
        latency_s = min(took_s, self.alpha_s)
        wire_s = min(took_s - latency_s, self.wire_s_per_byte * nbytes)
        return self.latency(latency_s) + wire_s * self.slower + (took_s - latency_s - wire_s)

    def latency(self, part_s: float) -> float:
        if self.alpha_s == 0:
            return self.new_alpha_s
        if self.new_alpha_s <= self.alpha_s:
            return min(part_s, self.new_alpha_s)
        return part_s / self.alpha_s * self.new_alpha_s

    def per_byte(self, beta: float) -> float:
        wire = min(beta, self.wire_s_per_byte)
        return wire * self.slower + (beta - wire)

    def alpha_interval(self, was: Interval) -> Interval:
        """As wide in proportion; a latency where there was none is as exact as it was given."""
        low, high = (end / self.alpha_s if self.alpha_s > 0 else 1.0 for end in was)
        return (min(low, 1.0) * self.new_alpha_s, max(high, 1.0) * self.new_alpha_s)

    def model(self, was: CostModel) -> CostModel:
        """The cost model rewritten. Its residuals stay those of the measurement: nothing new was measured."""
        return was.model_copy(
            update={
                "alpha_s": self.new_alpha_s,
                "beta_s_per_byte": self.per_byte(was.beta_s_per_byte),
                "alpha_ci95": self.alpha_interval(was.alpha_ci95),
                "beta_ci95": (self.per_byte(was.beta_ci95[0]), self.per_byte(was.beta_ci95[1])),
                "points": [self.point(point) for point in was.points],
                "segments": self.segments(was.segments, was.points) if was.segments else [],
            }
        )

    def point(self, point: CostPoint) -> CostPoint:
        low_s, high_s = (self.time_s(point.nbytes, max(0.0, end_s)) for end_s in point.ci95)
        took_s = max(self.time_s(point.nbytes, point.transfer_s), LEAST_S)
        return point.model_copy(update={"transfer_s": took_s, "ci95": (low_s, high_s)})

    def segments(self, was: Sequence[CostSegment], points: Sequence[CostPoint]) -> list[CostSegment]:
        """The same knots at their new times, joined again by straight pieces that do not fall."""
        starts = [float(segment.from_bytes) for segment in was]
        far = max([2 * starts[-1] + 1, *(float(point.nbytes) for point in points)])
        pieces = [*zip(starts, was, strict=True), (far, was[-1])]
        knots: list[tuple[float, float]] = []
        for nbytes, piece in pieces:
            took_s = self.time_s(nbytes, max(0.0, piece.alpha_s + piece.beta_s_per_byte * nbytes))
            knots.append((nbytes, max([took_s, *(before_s for _, before_s in knots[-1:])])))
        found: list[CostSegment] = []
        for (start, start_s), (end, end_s) in itertools.pairwise(knots):
            beta = (end_s - start_s) / (end - start)
            found.append(CostSegment(from_bytes=int(start), alpha_s=start_s - beta * start, beta_s_per_byte=beta))
        return found


def _told_of_the_link(
    measured: Measured, change: Change, link: _Link, alpha_s: float, slower: float
) -> tuple[list[str], list[str]]:
    """What was changed of rate and latency, and what that cannot know, a sentence each."""
    was = measured.cost
    told: list[str] = []
    cautions: list[str] = []
    if change.rate_bps is not None and slower != 1.0:
        told.append(
            f"links of {format_rate(change.rate_bps)} in place of {format_rate(link.asked_bps)}: what the link took of "
            f"each all-reduce, at {format_rate(link.achieved_bps)} as measured, × {slower:.4g}"
        )
        if measured.fabric.rate_bps is None and measured.fabric.measured_bps is None:
            cautions.append("No link's rate was measured: the bus bandwidth of the largest all-reduce stands for it.")
        if slower < 1:
            cautions.append("What hosts need for each byte hid behind the slower link: a faster one may help less.")
        if not 1 / FAR <= slower <= FAR:
            cautions.append(f"{format_rate(change.rate_bps)} is far from the {format_rate(link.asked_bps)} measured.")
    if change.latency_s is not None and alpha_s != was.alpha_s:
        messages = 2 * (was.world_size - 1)
        told.append(
            f"{format_seconds(change.latency_s)} a message in place of {format_seconds(was.alpha_s / messages)}, with "
            f"{messages} messages an all-reduce of the {was.world_size} workers measured"
        )
    return told, cautions


def _ring(was: int, now: int) -> str:
    """What another ring does to an all-reduce, in words."""
    messages, nbytes = (ring(1.0, 0.0, 0.0, now)[0] / ring(1.0, 0.0, 0.0, was)[0],
                        ring(0.0, 1.0, 0.0, now)[1] / ring(0.0, 1.0, 0.0, was)[1])  # fmt: skip
    return f"messages × {messages:.4g}, bytes on each link × {nbytes:.4g}"


def _fabric(was: FabricRecord, change: Change, cost: CostModel) -> FabricRecord:
    """The fabric of a what-if: simulated, with nothing measured on it."""
    workers = cost.world_size
    per_host = change.ranks_per_host or (workers if was.hosts == 1 else was.ranks_per_host)
    if workers % per_host:
        per_host = 1
    return was.model_copy(
        update={
            "label": "simulated",
            "spec": f"what if from {was.spec}",
            "hosts": workers // per_host,
            "ranks_per_host": per_host,
            "world_size": workers,
            "rate_bps": change.rate_bps or was.rate_bps,
            "measured_bps": None,
            "allreduce_bps": None,
            "cores_per_rank": [],
        }
    )


def _check(layers: Sequence[Layer], times: StepTimes, cost: CostModel) -> None:
    """Raise ValueError for times that no measurement gives; a record is refused for infinite ones when it is read."""
    if cost.world_size < 2:
        raise ValueError(f"its cost model is of {cost.world_size} workers, and an all-reduce needs 2")
    named = {
        "forward_s": times.forward_s,
        "backward_s": times.backward_s,
        "optimizer_s": times.optimizer_s,
        "uninstrumented_step_s": times.uninstrumented_step_s,
        "cost_model.alpha_s": cost.alpha_s,
        "cost_model.beta_s_per_byte": cost.beta_s_per_byte,
        **{f"{tensor.name}.ready_s": tensor.ready_s for layer in layers for tensor in layer.tensors},
        **{f"the all-reduce of {point.nbytes} bytes": point.transfer_s for point in cost.points},
    }
    for name, value in named.items():
        if not 0 <= value <= LONGEST_S:
            raise ValueError(f"{name} is {value:g}, out of range 0 to {LONGEST_S:g}")
    for point in cost.points:
        if point.nbytes <= 0 or point.transfer_s <= 0:
            raise ValueError(
                f"an all-reduce of {point.nbytes} bytes in {point.transfer_s:g} s: both must be above zero"
            )


def _ended(record: Profile | Comparison) -> str:
    why = "its run ended before that was measured; " if not record.complete else ""
    return f"{why}xbench profile WORKLOAD measures it"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
