"""Predicted step of torch's own modes: `fsdp`, `hsdp`, `replicate` and `zero1`.

A **unit** u has M_u bytes of parameters, and as many of gradients. G, R, A and B are the times of an all-gather, a
reduce-scatter, an all-reduce and a broadcast of M bytes, as measured. N ranks, forward F, backward B, optimizer O.

`fsdp`: every unit is gathered before its forward pass and, except the root, again before its backward pass. Its
gradients are reduce-scattered after that. The optimizer updates an N-th.

- Over Gloo the host waits for each collective, so nothing overlaps:
  step = F + B + O/N + Σ (2·G + R)(M_u) − G(M_root) + units
- On a stream, collectives are on one link in the order in which the host issues them. The host issues a unit's gather
  when the unit before it begins to compute, so one gather is ahead. A unit's reduce-scatter follows its backward pass.
  The next unit's gradients are copied only after that reduce-scatter has ended.

`hsdp`: as `fsdp`, with G, R and N those of a group of ranks. After its reduce-scatter, a unit's shard of M_u/N bytes is
all-reduced between the groups. On a stream, these all-reduces are on a link of their own, as torch issues them.

`replicate`: each unit's gradients are all-reduced after its backward pass. Over Gloo the host waits:
step = F + B + O + Σ A(M_u) + units. On a stream they overlap as those of our own schedules, and O follows the last.

`zero1`: DDP's step, with an optimizer that updates the elements of the rank that has most, and then Σ B(M_p) over all
parameters.

In a step of several micro-steps, only the last one reduces gradients. `fsdp` gathers parameters in every one.

Units are the host's time for each unit and for each tensor besides collectives, copies included, where it was measured
(`profilers.unit_cost`): over Gloo. On a GPU the host is ahead of the device. Gradients of frozen parameters do not
exist, and their bytes are not known here, so a unit's bytes are those of its gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from xbench.planning import merge
from xbench.planning.cost import CostCurve
from xbench.planning.plans import Planner
from xbench.planning.sharding import cost_name
from xbench.planning.simulate import Buckets, simulate
from xbench.planning.step import StepModel
from xbench.records import CostModel, Layer, UnitCost

ROOT = ""
"""Name of the root unit."""


@dataclass(frozen=True)
class Sharded:
    """Inputs of a prediction.

    `units`: parameter names by unit; the root is ROOT. `costs`: cost models by `sharding.cost_name`. `workers`: N, the
    ranks that divide the state. `waits`: whether the host waits for each collective, as over Gloo. `in_groups`: whether
    there are further groups of N ranks, each with a copy of the state. `unit`: the host's time for a unit and for a
    tensor, besides collectives; None where it was not measured.
    """

    planner: Planner
    layers: Sequence[Layer]
    units: Mapping[str, Sequence[str]]
    costs: Mapping[str, CostModel]
    workers: int
    waits: bool
    in_groups: bool = False
    unit: UnitCost | None = None

    @property
    def step(self) -> StepModel:
        """The step without communication."""
        return self.planner.step

    def curve(self, collective: str) -> CostCurve:
        """T of a collective. Raises KeyError where it was not measured."""
        if collective == "all_reduce" and not self.in_groups and collective not in self.costs:
            return CostCurve.of(self.planner.known_cost)
        return CostCurve.of(self.costs[cost_name(collective, self.workers if self.in_groups else None)])

    def between_s(self, nbytes: float) -> float:
        """Time [s] of the all-reduce of a unit's shard between groups; 0 without groups. `nbytes`: the whole unit's."""
        return self.curve("all_reduce")(nbytes / self.workers) if self.in_groups else 0.0

    @property
    def unit_s(self) -> float:
        """The host's time for a unit, besides collectives [s]."""
        return self.unit.unit_s if self.unit is not None else 0.0

    @property
    def units_s(self) -> float:
        """The host's time for all units and their tensors [s]."""
        tensors_s = len(self.step.gradients) * self.unit.tensor_s if self.unit is not None else 0.0
        return len(self.unit_bytes) * self.unit_s + tensors_s

    @property
    def unit_bytes(self) -> dict[str, int]:
        """Bytes of the gradients of each unit that has any."""
        nbytes = {gradient.name: gradient.nbytes for gradient in self.step.gradients}
        found = {unit: sum(nbytes.get(name, 0) for name in names) for unit, names in self.units.items()}
        return {unit: size for unit, size in found.items() if size}


def fsdp(inputs: Sharded) -> float:
    """The predicted step [s]. Raises KeyError where a collective was not measured."""
    gather, scatter = inputs.curve("all_gather"), inputs.curve("reduce_scatter")
    step, sizes = inputs.step, inputs.unit_bytes
    optimizer_s = step.optimizer_s / inputs.workers
    if not inputs.waits:
        earlier_s = (step.micro_steps - 1) * _overlapped(inputs, gather, None)
        return step.input_s + earlier_s + _overlapped(inputs, gather, scatter) + optimizer_s
    gathers = [size for unit, size in sizes.items() for _ in range(1 if unit == ROOT else 2)] * step.micro_steps
    sent_s = sum(map(gather, gathers)) + sum(scatter(size) + inputs.between_s(size) for size in sizes.values())
    return step.ahead_s + step.backward_s + optimizer_s + sent_s + inputs.units_s


def replicate(inputs: Sharded) -> float:
    """The predicted step [s]."""
    reduce, step, sizes = inputs.curve("all_reduce"), inputs.step, inputs.unit_bytes
    if inputs.waits:
        return step.computed_s + sum(map(reduce, sizes.values())) + inputs.units_s
    place = {gradient.name: index for index, gradient in enumerate(step.gradients)}
    every: Buckets = [[place[name] for name in names if name in place] for names in inputs.units.values()]
    buckets = [bucket for bucket in every if bucket]
    return simulate(step, sorted(buckets, key=max), reduce, contention=inputs.planner.contention).step_s


def zero1(inputs: Sharded) -> float:
    """The predicted step [s]. Raises KeyError where a broadcast was not measured."""
    planner, step = inputs.planner, inputs.step
    elements = [gradient.elements or gradient.nbytes for gradient in step.gradients]
    share = largest_share(elements, inputs.workers)
    own = replace(planner, step=replace(step, optimizer_s=step.optimizer_s * share))
    ddp_s = own.simulate("ddp", merge.ddp(step.gradients)).step_s
    return ddp_s + sum(map(inputs.curve("broadcast"), [gradient.nbytes for gradient in step.gradients]))


def largest_share(elements: Sequence[int], workers: int) -> float:
    """The share of all elements that the fullest rank owns, if each tensor goes to the emptiest, the largest first."""
    owned = [0] * workers
    for size in sorted(elements, reverse=True):
        owned[owned.index(min(owned))] += size
    return max(owned) / sum(owned)


def forward_order(inputs: Sharded) -> list[str]:
    """The units that have gradients, without the root, in the order of their first layers in the forward pass."""
    sizes = inputs.unit_bytes
    return [unit for unit in dict.fromkeys(unit for unit, _, _ in _segments(inputs)) if unit != ROOT and unit in sizes]


def _overlapped(inputs: Sharded, gather: CostCurve, scatter: CostCurve | None) -> float:
    """The forward and the backward pass [s] where the link sends while the device computes.

    Without `scatter` no gradients are reduced.
    """
    segments, sizes = _segments(inputs), inputs.unit_bytes
    blocks = forward_order(inputs)
    now_s = link_s = between_s = gather(float(sizes.get(ROOT, 0)))
    issued_s = 0.0
    gathered: set[str] = set()
    for unit, forward_s, _ in segments:
        if unit in blocks and unit not in gathered:
            gathered.add(unit)
            link_s = max(link_s, issued_s) + gather(float(sizes[unit]))
            now_s = max(now_s, link_s)
            issued_s = now_s
        now_s += forward_s
    link_s, ahead_s = max(link_s, now_s), now_s
    arrived_s: dict[str, float] = {}
    left = {unit: [u for u, _, _ in segments].count(unit) for unit in {u for u, _, _ in segments}}
    order = blocks[::-1]
    for unit, _, backward_s in reversed(segments):
        if unit in order:
            place = order.index(unit)
            for wanted in order[place : place + 2]:  # its own gather, and one ahead
                if wanted not in arrived_s:
                    link_s = max(link_s, now_s) + gather(float(sizes[wanted]))
                    arrived_s[wanted] = link_s
                now_s = max(now_s, arrived_s[unit])
        now_s += backward_s
        left[unit] -= 1
        if scatter is not None and not left[unit] and unit in sizes:
            now_s = max(now_s, ahead_s)  # the reduce-scatter before it
            link_s = ahead_s = max(link_s, now_s) + scatter(float(sizes[unit]))
            between_s = max(between_s, ahead_s) + inputs.between_s(float(sizes[unit]))
    return max(now_s, link_s, between_s)


def _segments(inputs: Sharded) -> list[tuple[str, float, float]]:
    """(unit, forward [s], backward [s]) of each layer in forward order; together they take the step's forward and
    backward."""
    owner = {name: unit for unit, names in inputs.units.items() for name in names}
    layers = list(reversed(inputs.layers))
    forward_s, backward_s = sum(one.forward_s for one in layers), sum(one.backward_s for one in layers)
    ahead = inputs.step.forward_s / forward_s if forward_s else 0.0
    back = inputs.step.backward_s / backward_s if backward_s else 0.0
    return [(owner.get(one.tensors[0].name, ROOT), one.forward_s * ahead, one.backward_s * back) for one in layers]
