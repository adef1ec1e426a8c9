"""Predicted step of torch's own modes: `fsdp`, `hsdp`, `replicate` and `zero1` (docs/planner.md, Shards).

Over Gloo the host waits for each collective, so nothing overlaps and the step is a sum. On a stream, collectives are on
one link in the order in which the host issues them. The host issues a unit's gather when the unit before it begins to
compute, so one gather is ahead. A unit's reduce-scatter follows its backward pass. The next unit's gradients are copied
only after that reduce-scatter has ended. The all-reduces between groups are on a link of their own, as torch issues
them. In a step of several micro-steps, only the last one reduces gradients, and `fsdp` gathers parameters in every one.

Gradients of frozen parameters do not exist, and their bytes are not known here, so a unit's bytes are those of its
gradients.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from xbench.errors import SpecError
from xbench.field_types import MAX_COUNT
from xbench.planning import merge
from xbench.planning.cost import CostCurve
from xbench.planning.plans import Planner
from xbench.planning.simulate import Buckets, simulate
from xbench.planning.step import StepModel
from xbench.records import CostModel, Layer, UnitCost
from xbench.spec import known_options, parse_int
from xbench.units import parse_bytes

ROOT = ""
"""Name of the root unit."""


GATHERED = "gathered"
"""Option: the most bytes of a unit of several blocks."""

GROUP = "group"
"""Option: the ranks that divide one copy of the parameters among themselves."""


def options(text: str, given: dict[str, str]) -> dict[str, str]:
    """The checked options of the mode `text`: group=2 and above. Raises SpecError."""
    known_options(text, given, (GROUP,))
    return {GROUP: str(parse_int(text, GROUP, given[GROUP], 2, MAX_COUNT))} if GROUP in given else {}


def unit_options(text: str, given: dict[str, str]) -> dict[str, str]:
    """The checked options of a mode of planned units: gathered=64MiB, of at least a byte. Raises SpecError."""
    known_options(text, given, (GATHERED,))
    if GATHERED in given and parse_bytes(given[GATHERED]) < 1:
        raise SpecError(f"{text!r}: a unit of {given[GATHERED]} has no parameters", hint=f"try {GATHERED}=64MiB")
    return given


def shard_ranks(text: str, options: Mapping[str, str], world_size: int, ranks_per_host: int) -> int:
    """The ranks that divide one copy of the parameters: those of the option, else those of a host.

    Where a host has one rank or all, it is the largest number that leaves at least two copies. Raises SpecError where
    `world_size` ranks are no such groups.
    """
    fitting = [ranks for ranks in range(2, world_size) if world_size % ranks == 0]
    if not fitting:
        raise SpecError(
            f"mode {text!r} needs two or more groups of two or more ranks, and {world_size} ranks are not",
            hint="try --fabric local:ranks=4",
        )
    asked = int(options[GROUP]) if GROUP in options else None
    if asked is not None and asked not in fitting:
        raise SpecError(
            f"mode {text!r}: {world_size} ranks are not two or more groups of {asked}",
            hint=f"try {GROUP}={min(fitting, key=lambda ranks: abs(ranks - asked))}",
        )
    return asked or (ranks_per_host if ranks_per_host in fitting else fitting[-1])


def cost_name(collective: str, ranks: int | None) -> str:
    """The name of a collective's cost: 'all_gather', or 'all_gather:group=2' if the ranks are in groups of two.

    An all-reduce between groups has the size of the groups in its name too: 'all_reduce:group=2'.
    """
    return collective if ranks is None else f"{collective}:{GROUP}={ranks}"


def replicate_obstacle() -> str | None:
    """Reason why the installed torch has no `replicate` on FSDP2, as half a sentence, or None."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return "torch is not installed"
    if (Path(found.origin).parent / "distributed" / "_composable" / "replicate_with_fsdp.py").exists():
        return None
    return "this torch has no torch.distributed._composable.replicate_with_fsdp"


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
