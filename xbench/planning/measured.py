"""Measured inputs of plans: read from a record, checked, and converted to another link.

A measured time t of M bytes in a ring of N workers has three parts, taken in this order, none below zero:

    latency  min(t, α), α of the fitted line                    time of the 2(N−1) messages
    wire     min(t − latency, 2(N−1)/N · 8M / measured rate)    time of the link itself
    host     the rest                                           copies and additions of the hosts, congestion

Another rate scales the wire's part, another latency the first. A link does no work on the host, so the host's part
stays, and with it the host time that computation loses to a collective. docs/plan.md has the formulas. On a link so
fast that the host's own work fills the collective, the host sets the pace (`FAIR_SHARE`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from xbench import records
from xbench.errors import RecordError, SpecError
from xbench.field_types import MIN_S
from xbench.planning.contention import Contention
from xbench.planning.cost import CostCurve, ring
from xbench.planning.step import StepModel
from xbench.planning.topology import MAX_S
from xbench.text import counted

FAIR_SHARE = 0.5
"""Share of a host that collectives can take from computation, unless a larger one was measured."""

MAX_SLOWDOWN = 1e6
"""Largest valid slow-down of computation by a collective."""


@dataclass(frozen=True)
class Measured:
    """One job of a record, with all inputs of a plan. `name` stands for the record in errors and notes."""

    name: str
    record: records.Profile | records.Comparison
    workload: records.WorkloadRecord
    layers: tuple[records.Layer, ...]
    times: records.StepTimes
    step: StepModel
    cost: records.CostModel
    contention_record: records.Contention | None = None
    plans: Mapping[str, records.Plan] = field(default_factory=dict)
    """The record's own plans."""

    @cached_property
    def contention(self) -> Contention | None:
        """Contention of communication and computation; None where it was not measured."""
        return planned_contention(self.contention_record, self.cost)

    @property
    def fabric(self) -> records.FabricRecord:
        """The fabric of the cost model's measurement."""
        return self.record.fabric

    @property
    def measured_step_s(self) -> dict[str, float]:
        """Measured step of each single-job mode that ran and passed its parity check; empty for a profile.

        It is also empty for a comparison of several jobs.
        """
        if len(self.record.profiled) > 1:
            return {}
        return {
            name: mode.step_s.median
            for name, mode in self.record.modes.items()
            if mode.step_s is not None and mode.status == "ok" and (mode.parity is None or mode.parity.ok)
        }


def read(path: Path, job: int | None = None) -> Measured:
    """The measurements in a record, or in a run's folder. Raises RecordError and SpecError as `measured` does."""
    return measured(records.load_measured(path), str(path), job)


def measured(record: records.Profile | records.Comparison, name: str, job: int | None = None) -> Measured:
    """The inputs of a plan from `record`; `job` counts from 1 and chooses among those of a comparison.

    Raises RecordError for a record that cannot be planned (no cost model, no step, no gradients, invalid times). Raises
    SpecError for a job that the record does not have, for different jobs when none was chosen, and for a record with
    compressed gradients.
    """
    if record.spec.compress is not None:
        raise SpecError(
            f"{name!r} was measured with gradients compressed to {record.spec.compress}, and plans are of what was not",
            hint="profile it again without --compress",
        )
    chosen = _job(record, name, job)
    ended = "" if record.complete else "its run ended before that was measured; "
    hint = f"{ended}xbench profile WORKLOAD measures it"
    if not chosen.layers:
        raise RecordError(f"{name!r} has no layers with gradients: nothing to plan", hint=hint)
    if chosen.step is None:
        raise RecordError(f"{name!r} says nothing of how long a step takes", hint=hint)
    cost = record.cost_model
    if cost is None:
        where = "one rank" if record.fabric.world_size == 1 else record.fabric.spec
        raise RecordError(
            f"{name!r} has no cost model: it was measured on {where}, where no all-reduce was timed",
            hint=f"xbench profile {chosen.workload.spec.name} --fabric shaped:hosts=2,rate=1gbit times them",
        )
    try:
        _check_parts(chosen.layers, chosen.step, cost, record.fabric)
        check_curve(cost)
        step = StepModel.of(chosen.layers, chosen.step)
        if not step.compute_s > 0:
            raise ValueError(f"its step took {step.compute_s:g} s, and must have taken time")
        if not step.grad_bytes > 0:
            raise ValueError("its gradients have no bytes: nothing to send")
    except (ValueError, OverflowError) as error:
        raise RecordError(f"{name!r} cannot be planned: {error}") from None
    try:
        check_contention(chosen.contention)
        planned_contention(chosen.contention, cost)
    except ValueError as error:
        raise RecordError(f"{name!r}: its contention is not valid: {error}") from None
    return Measured(
        name, record, chosen.workload, tuple(chosen.layers), chosen.step, step, cost, chosen.contention, chosen.plans
    )


def _job(record: records.Profile | records.Comparison, name: str, job: int | None) -> records.Profile | records.Job:
    found: list[records.Profile | records.Job] = list(record.profiled)
    if job is not None and not 1 <= job <= len(found):
        raise SpecError(f"--job {job}: {name!r} holds {counted(len(found), 'job')}", hint="they count from 1")
    if not found:
        raise RecordError(f"{name!r} holds no job: nothing to plan")
    if job is None and any(other.workload != found[0].workload for other in found):
        titles = " and ".join(f"{place} ({one.workload.title})" for place, one in enumerate(found, start=1))
        raise SpecError(f"{name!r} holds the jobs {titles}, and a plan is of one", hint="add --job 1")
    return found[(job or 1) - 1]


def planned_contention(both: records.Contention | None, cost: records.CostModel) -> Contention | None:
    """Contention for plans (`Contention.planned`); None where nothing was measured. Raises ValueError as it does."""
    return Contention.planned(both, CostCurve.of(cost)) if both is not None else None


# Reading a record refuses infinite times. The checks below refuse times that no measurement gives, and parts that are
# not of one measurement. Each raises ValueError with the fault, without the record's name.


TIMES = ("input_s", "accumulate_s", "forward_s", "backward_s", "optimizer_s", "uninstrumented_step_s")
"""Times of `StepTimes` that a step is planned from."""


def _check_range(values: Mapping[str, float], low: float = 0.0, high: float = MAX_S) -> None:
    for name, value in values.items():
        if not low <= value <= high:
            raise ValueError(f"{name} is {value:g}, out of range {low:g} to {high:g}")


def _check_parts(
    layers: Sequence[records.Layer], times: records.StepTimes, cost: records.CostModel, fabric: records.FabricRecord
) -> None:
    if cost.world_size < 2:
        raise ValueError(f"its cost model has a world size of {cost.world_size}, and an all-reduce needs 2")
    _check_range(
        {name: getattr(times, name) for name in TIMES}
        | {f"cost_model.{name}": getattr(cost, name) for name in ("alpha_s", "beta_s_per_byte")}
        | {f"{layer.name}.forward_s": layer.forward_s for layer in layers}
        | {f"{tensor.name}.ready_s": tensor.ready_s for layer in layers for tensor in layer.tensors}
        | {f"the all-reduce of {point.nbytes} bytes": point.transfer_s for point in cost.points}
    )
    for point in cost.points:
        if point.nbytes <= 0 or point.transfer_s <= 0:
            raise ValueError(
                f"an all-reduce of {point.nbytes} bytes in {point.transfer_s:g} s: both must be above zero"
            )
    names = [tensor.name for layer in layers for tensor in layer.tensors]
    if len(set(names)) < len(names):
        raise ValueError(f"the tensor {next(name for name in names if names.count(name) > 1)!r} stands twice")
    if cost.collective != "all_reduce":
        raise ValueError(f"its cost model is of {cost.collective}, and all_reduce is needed")
    if (cost.world_size, cost.backend) != (fabric.world_size, fabric.backend):
        raise ValueError(
            f"its cost model is of {cost.world_size} workers over {cost.backend} and its fabric has "
            f"{fabric.world_size} over {fabric.backend}: they are not of one measurement"
        )


def check_ring(fabric: records.FabricRecord) -> None:
    """Refuse collectives of a topology other than a ring: they cannot be converted to another link."""
    topology = fabric.spec.partition("topology=")[2].partition(",")[0]
    if fabric.label == "emulated" and topology not in ("", "ring"):
        raise ValueError(f"it was emulated with the topology {topology}, and only a ring is carried over")


def check_contention(both: records.Contention | None) -> None:
    """Refuse times and slow-downs that no measurement gives."""
    if both is None:
        return
    names = ("launch_s", "hook_s", "copy_s_per_byte", "meeting_s", "rest_s", "host_step_s", "device_step_s")
    _check_range({name: value for name in names if (value := getattr(both, name)) is not None})
    for point in both.points:
        where = f"of {point.nbytes} bytes"
        if point.in_flight not in (1, 2):
            raise ValueError(f"a point {where} has {point.in_flight} in flight, and it is 1 or 2 that are measured")
        _check_range({f"alone_s {where}": point.alone_s, f"loaded_s {where}": point.loaded_s}, MIN_S)
        _check_range({f"compute_slowdown {where}": point.compute_slowdown}, 1 / MAX_SLOWDOWN, MAX_SLOWDOWN)


def check_curve(cost: records.CostModel) -> None:
    """Refuse a cost model that is not a valid curve: times that fall, or are below zero."""
    try:
        CostCurve.of(cost)
    except ValueError as error:
        raise ValueError(f"its cost model: {error}") from None


@dataclass(frozen=True)
class Link:
    """Configured rate of the fabric, its achieved rate, and the wire time of one byte of a collective."""

    asked_bps: float
    achieved_bps: float
    wire_s_per_byte: float

    @classmethod
    def of(cls, fabric: records.FabricRecord, cost: records.CostModel) -> Link:
        """Link of the fabric on which `cost` was measured. The achieved rate is the best available figure."""
        share = ring(0.0, 1.0, cost.world_size)[1]
        fitted = 8 * share / cost.beta_s_per_byte if cost.beta_s_per_byte > 0 else math.inf
        achieved = fabric.measured_bps or fabric.rate_bps or fabric.allreduce_bps or fitted
        return cls(fabric.rate_bps or achieved, achieved, 8 * share / achieved)


@dataclass(frozen=True)
class Rewrite:
    """(M, t) → t' for another rate and latency, by the module's formulas. `slower`: configured over new rate."""

    wire_s_per_byte: float
    slower: float
    alpha_s: float
    new_alpha_s: float

    def model(self, was: records.CostModel) -> records.CostModel:
        """The rewritten cost model. Its residuals stay those of the measurement."""
        low, high = (end / self.alpha_s if self.alpha_s > 0 else 1.0 for end in was.alpha_ci95)
        return was.model_copy(
            update={
                "alpha_s": self.new_alpha_s,
                "beta_s_per_byte": self._per_byte(was.beta_s_per_byte),
                # A new latency where there was none has no width.
                "alpha_ci95": (min(low, 1.0) * self.new_alpha_s, max(high, 1.0) * self.new_alpha_s),
                "beta_ci95": (self._per_byte(was.beta_ci95[0]), self._per_byte(was.beta_ci95[1])),
                "points": [self._point(point) for point in was.points],
                "segments": self._segments(was.segments, was.points) if was.segments else [],
            }
        )

    def contention(self, was: records.Contention) -> records.Contention:
        """The rewritten slow-downs. Hooks, copies and launches depend on the host and stay."""
        return was.model_copy(update={"points": [self._beside(point) for point in was.points]})

    def host_bound(self, was: records.Contention) -> bool:
        """True if at some size the host, not the link, sets the pace of a collective during computation."""
        return any(self._beside(point).loaded_s > self._unlimited(point)[1] * (1 + 1e-9) for point in was.points)

    def _time_s(self, nbytes: float, took_s: float) -> float:
        """Predicted time of an all-reduce of `nbytes` that took `took_s`."""
        latency_s = min(took_s, self.alpha_s)
        wire_s = min(took_s - latency_s, self.wire_s_per_byte * nbytes)
        return self._latency(latency_s) + wire_s * self.slower + (took_s - latency_s - wire_s)

    def _latency(self, part_s: float) -> float:
        """The new latency of a collective of which `part_s`, at most α, was latency."""
        if self.alpha_s == 0:
            return self.new_alpha_s
        if self.new_alpha_s <= self.alpha_s:
            return min(part_s, self.new_alpha_s)
        return part_s / self.alpha_s * self.new_alpha_s

    def _per_byte(self, beta: float) -> float:
        """The new seconds per byte of the fitted line."""
        wire = min(beta, self.wire_s_per_byte)
        return wire * self.slower + (beta - wire)

    def _point(self, point: records.CostPoint) -> records.CostPoint:
        ends_s = tuple(self._time_s(point.nbytes, max(0.0, end_s)) for end_s in point.ci95)
        took_s = max(self._time_s(point.nbytes, point.transfer_s), MIN_S)
        return point.model_copy(update={"transfer_s": took_s, "ci95": ends_s})

    def _segments(
        self, was: Sequence[records.CostSegment], points: Sequence[records.CostPoint]
    ) -> list[records.CostSegment]:
        """The same knots at their new times, joined by straight pieces that do not fall."""
        starts = [float(segment.from_bytes) for segment in was]
        far = max([2 * starts[-1] + 1, *(float(point.nbytes) for point in points)])
        knots: list[tuple[float, float]] = []
        for nbytes, piece in [*zip(starts, was, strict=True), (far, was[-1])]:
            took_s = self._time_s(nbytes, max(0.0, piece.alpha_s + piece.beta_s_per_byte * nbytes))
            knots.append((nbytes, max([took_s, *(before_s for _, before_s in knots[-1:])])))
        found: list[records.CostSegment] = []
        for (start, start_s), (end, end_s) in itertools.pairwise(knots):
            beta = (end_s - start_s) / (end - start)
            found.append(
                records.CostSegment(from_bytes=int(start), alpha_s=start_s - beta * start, beta_s_per_byte=beta)
            )
        return found

    def _beside(self, point: records.ContentionPoint) -> records.ContentionPoint:
        """One size and number in flight, rewritten."""
        alone_s, loaded_s = self._unlimited(point)
        share = 1 - 1 / max(1.0, point.compute_slowdown)  # of its host that computation loses; a speed-up is noise
        taken_s = share * point.loaded_s
        loaded_s = max(loaded_s, taken_s / max(FAIR_SHARE, share))
        slowdown = 1 / (1 - taken_s / loaded_s) if share > 0 else point.compute_slowdown
        return point.model_copy(update={"alone_s": alone_s, "loaded_s": loaded_s, "compute_slowdown": slowdown})

    def _unlimited(self, point: records.ContentionPoint) -> tuple[float, float]:
        """(alone', alone' + extra) [s], without the limit of the host's share."""
        alone_s = max(self._time_s(point.nbytes, point.alone_s), MIN_S)
        if point.loaded_s < point.alone_s:
            return alone_s, max(alone_s * (point.loaded_s / point.alone_s), MIN_S)
        return alone_s, alone_s + (point.loaded_s - point.alone_s)
