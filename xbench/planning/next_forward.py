"""Steps that still send gradients during the next forward pass: DeAR and priority scheduling (docs/planner.md).

Every other schedule waits for all gradients before the next forward pass. Here each layer, in forward order, waits for
its own, and then has the update of its parameters and its forward pass. `dear` (arXiv 2302.12445) sends buckets in two
halves, `priority` (P3, MLSys 2019; ByteScheduler, SOSP 2019) in parts, of which the next forward pass needs one first.

The step in the steady state lasts from one start of backward to the next. Backward follows the last layer, so at its
start all gradients have arrived and the link is idle: one period is exactly the steady state.

In a step of several micro-steps, the layers wait in the forward pass of the first one, and the rest of all but the last
is computation after it. The wait for a loader's batch comes before the forward pass of each, while gradients travel.
Half of an all-reduce is assumed to slow the computation as much as the whole does, for half as long.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from xbench.planning.contention import Contention
from xbench.planning.cost import CostFunction
from xbench.planning.periodic import Period, Task, Transfer, run
from xbench.planning.simulate import Buckets, Step, bucket_bytes
from xbench.planning.step import StepModel
from xbench.records import Layer, Slice, Timeline

SCATTER_SHARE = 0.5
"""A reduce-scatter's share of an all-reduce: in a ring it has half of the messages and half of the bytes.

Over NCCL both halves are measured instead (`ModeInfo.halves`): a switch that reduces (NVLink SHARP) takes much less for
an all-reduce than for both."""


@dataclass(frozen=True)
class ForwardLayer:
    """A layer of the next forward pass: it waits for `gradients`, indices in ready order, and takes `forward_s`."""

    name: str
    forward_s: float
    gradients: tuple[int, ...]


def forward_layers(layers: Sequence[Layer], step: StepModel) -> list[ForwardLayer]:
    """The layers of a profile in forward order, with forward times scaled to sum to `step.forward_s`.

    Raises ValueError when no layer has some gradient of `step`: the two are then of different profiles.
    """
    place = {gradient.name: index for index, gradient in enumerate(step.gradients)}
    missing = place.keys() - {tensor.name for layer in layers for tensor in layer.tensors}
    if missing:
        raise ValueError(f"gradient {min(missing)!r} is of no layer: step and layers are of different profiles")
    whole_s = sum(layer.forward_s for layer in layers)
    return [
        ForwardLayer(
            layer.name,
            step.forward_s * (layer.forward_s / whole_s if whole_s > 0 else 1 / len(layers)),
            tuple(place[tensor.name] for tensor in layer.tensors if tensor.name in place),
        )
        for layer in reversed(layers)
    ]


class NetworkModel:
    """One network on one link, for both schedules; `curve` is T of a whole all-reduce [s] by size [B].

    `halves` are those of a reduce-scatter and an all-gather, by the size of the whole; None takes SCATTER_SHARE.
    Raises ValueError when the layers do not hold each gradient of `step` exactly once, and for a part of the step that
    is negative or not finite.
    """

    def __init__(
        self,
        layers: Sequence[ForwardLayer],
        step: StepModel,
        curve: CostFunction,
        contention: Contention | None = None,
        halves: tuple[CostFunction, CostFunction] | None = None,
    ) -> None:
        for name, part_s in [("backward_s", step.backward_s), ("optimizer_s", step.optimizer_s)] + [
            (f"forward_s of {layer.name!r}", layer.forward_s) for layer in layers
        ]:
            if not math.isfinite(part_s) or part_s < 0:
                raise ValueError(f"{name} is {part_s}: a part of a step takes zero seconds or more")
        self.step = step
        self.first_use = _first_use(layers, len(step.gradients))
        self._layers = layers
        self._curve = curve
        self._halves = halves or (lambda nbytes: curve(nbytes) * SCATTER_SHARE,) * 2
        self._contention = contention or Contention.none()
        self._ready_s = self._contention.ready_s(step.gradients)
        self.backward_s = step.backward_s + (0.0 if contention is None else contention.hooks_s(step.gradients))
        self._own_bytes = [sum(step.gradients[index].nbytes for index in layer.gradients) for layer in layers]
        self._whole = step.grad_bytes
        self._least_s = float(curve(np.ones(1))[0])
        self._update_s = [step.optimizer_s * (own / self._whole) if own else 0.0 for own in self._own_bytes]
        work_s = (update_s + layer.forward_s for update_s, layer in zip(self._update_s, layers, strict=True))
        self._until_s = [0.0, *itertools.accumulate(work_s)]  # work before each layer

    def dear(self, buckets: Buckets, *, detailed: bool = False) -> tuple[list[Task], list[Transfer], Period]:
        """One period of `dear` with these buckets of `step.gradients`, in launch order.

        Unless `detailed`, consecutive layers are one task. Raises ValueError when the buckets do not hold each gradient
        exactly once.
        """
        sizes = bucket_bytes(self.step.gradients, buckets)
        scatter_s, gather_s = (half(np.array(sizes, dtype=np.float64)).tolist() for half in self._halves)
        least_scatter_s, least_gather_s = (float(half(np.ones(1))[0]) for half in self._halves)
        count = len(buckets)
        parcels: list[Transfer] = []
        complete_s = 0.0
        launched_s = self._contention.after_launches(self._complete_s(buckets))
        for number, (ready_s, nbytes, took_s) in enumerate(zip(launched_s, sizes, scatter_s, strict=True)):
            complete_s = max(complete_s, ready_s)
            name = f"bucket {number + 1} reduce-scatter"
            parcels.append(Transfer(name, complete_s, number, nbytes, took_s, least_scatter_s))
        bringing: dict[int, Iterable[int]] = {}
        for turn, number in enumerate(self._needed(buckets)):
            name = f"bucket {number + 1} all-gather"
            parcels.append(Transfer(name, complete_s, count + turn, sizes[number], gather_s[number], least_gather_s))
            bringing |= dict.fromkeys(buckets[number], (count + turn,))
        tasks = self._tasks(bringing, detailed, launches=len(parcels))
        return tasks, parcels, run(tasks, parcels, self._contention)

    def priority(
        self,
        buckets: Buckets,
        parts: Sequence[Sequence[int]],
        *,
        credit_bytes: float,
        order: Sequence[int] | None = None,
        detailed: bool = False,
    ) -> tuple[list[Task], list[Transfer], Period]:
        """One period of `priority` with these `parts` [B] of each bucket, numbered from 0 over all buckets.

        At most `credit_bytes` [B] are in flight, but always one part is allowed; inf is no limit. On one link a larger
        credit only makes preemption coarser, unless the contention makes two in flight faster. With an `order`, each
        part is launched after all parts before it. None: among the ready parts, the one that the next forward pass
        needs first.
        """
        sizes = [nbytes for cut in parts for nbytes in cut]
        took_s = self._curve(np.array(sizes, dtype=np.float64)).tolist()
        complete_s = self._complete_s(buckets)
        release_s = [at_s for at_s, cut in zip(complete_s, parts, strict=True) for _ in cut]
        bringing, urgency = self._brought(buckets, parts)
        wanted = order if order is not None else sorted(range(len(sizes)), key=urgency.__getitem__)
        rank = [0] * len(sizes)
        latest_s = 0.0
        for place, part in enumerate(wanted):
            rank[part] = place
            if order is not None:
                latest_s = release_s[part] = max(latest_s, release_s[part])
        parcels = [
            Transfer(name, release_s[part], rank[part], sizes[part], took_s[part], self._least_s)
            for part, name in enumerate(self._names(buckets, parts) if detailed else [""] * len(sizes))
        ]
        tasks = self._tasks(bringing, detailed, launches=len(parcels))
        return tasks, parcels, run(tasks, parcels, self._contention, credit_bytes=credit_bytes)

    def _complete_s(self, buckets: Buckets) -> list[float]:
        """Ready time of each bucket's last gradient [s of undisturbed backward]."""
        return [max(self._ready_s[index] for index in bucket) for bucket in buckets]

    def _needed(self, buckets: Buckets) -> list[int]:
        """Bucket numbers in the order in which the next forward pass needs them."""
        return sorted(range(len(buckets)), key=lambda number: min(self.first_use[index] for index in buckets[number]))

    def _brought(self, buckets: Buckets, parts: Sequence[Sequence[int]]) -> tuple[dict[int, Iterable[int]], list[int]]:
        """The parts that contain each gradient, and the position in the forward pass at which each part is first
        needed.

        A bucket's gradients lie one after the other in the bucket's order. A gradient of zero bytes is in no part,
        unless the whole bucket has zero bytes.
        """
        bringing: dict[int, Iterable[int]] = {}
        urgency: list[int] = []
        for bucket, cut in zip(buckets, parts, strict=True):
            first, each = len(urgency), max(1, cut[0])
            urgency += [len(self._layers)] * len(cut)
            filled = 0
            for index in bucket:
                nbytes = self.step.gradients[index].nbytes
                own = range(first, first + (0 if nbytes or cut[0] else 1))
                if nbytes:
                    own = range(first + filled // each, first + (filled + nbytes - 1) // each + 1)
                filled += nbytes
                bringing[index] = own
                for part in own:
                    urgency[part] = min(urgency[part], self.first_use[index])
        return bringing, urgency

    def _names(self, buckets: Buckets, parts: Sequence[Sequence[int]]) -> list[str]:
        names = []
        for number, (bucket, cut) in enumerate(zip(buckets, parts, strict=True), start=1):
            name = self.step.gradients[bucket[0]].name if len(bucket) == 1 else f"bucket {number}"
            names += [f"{name} {part} of {len(cut)}" if len(cut) > 1 else name for part in range(1, len(cut) + 1)]
        return names

    def _tasks(self, bringing: Mapping[int, Iterable[int]], detailed: bool, launches: int) -> list[Task]:
        """Backward, then each layer's update and forward, then the micro-steps before the next backward.

        An optimizer without bytes to update works after backward.

        `bringing` maps each gradient to the transfers that contain it. Layers between two waits follow each other
        without a gap. They are one task unless `detailed`. All `launches` belong to backward, although some come later.
        """
        tasks = [Task("backward", self.backward_s + self._contention.launch_s * launches)]
        if self._whole == 0 and self.step.optimizer_s:
            tasks.append(Task("optimizer", self.step.optimizer_s))
        input_s = self.step.input_s / self.step.micro_steps
        if input_s:
            tasks.append(Task("input", input_s))
        rest_s = self.step.accumulate_s + self.step.input_s - input_s
        last = [Task("accumulate", rest_s)] if rest_s else []
        wanted_at: dict[int, set[int]] = {0: set()}
        for index, parcels in bringing.items():
            wanted_at.setdefault(self.first_use[index], set()).update(parcels)
        there: set[int] = set()
        needs_at: dict[int, frozenset[int]] = {}
        for place in sorted(wanted_at):
            fresh = wanted_at[place] - there
            if fresh or place == 0:
                needs_at[place] = frozenset(fresh)
                there |= fresh
        if not detailed:
            for first, after in itertools.pairwise([*needs_at, len(self._layers)]):
                tasks.append(Task("forward", self._until_s[after] - self._until_s[first], needs_at[first]))
            return tasks + last
        for place, layer in enumerate(self._layers):
            needs = needs_at.get(place, frozenset())
            if self._own_bytes[place] and self.step.optimizer_s:
                tasks.append(Task("optimizer", self._update_s[place], needs))
            tasks.append(Task(f"forward {layer.name}", layer.forward_s, needs))
        return tasks + last


def part_sizes(nbytes: int, most: float) -> list[int]:
    """Sizes [B] of a bucket's parts: full parts, then the remainder. A bucket of zero bytes has one part."""
    if nbytes <= most:
        return [nbytes]
    size = int(most)
    return [size] * (nbytes // size) + ([nbytes % size] if nbytes % size else [])


def as_step(tasks: Sequence[Task], parcels: Sequence[Transfer], period: Period) -> Step:
    """Convert a period to a step, with a timeline that counts from the start of backward."""

    def draw() -> Timeline:
        return Timeline(
            label="simulated",
            compute=[
                Slice(name=task.name, start_s=start_s, end_s=end_s)
                for task, (start_s, end_s) in zip(tasks, period.computed, strict=True)
            ],
            communication=[
                Slice(name=parcels[at].name, start_s=start_s, end_s=end_s, nbytes=parcels[at].nbytes)
                for at, start_s, end_s in period.sent
            ],
        )

    return Step(period.end_s, period.waited_s, draw)


def from_forward(step: Step) -> Timeline:
    """The timeline of such a step, shifted to begin with the forward pass as a training step does.

    A transfer in flight at the end of backward becomes two slices. The second one is at the start, as a remainder of
    the step before. The slice at the end has the bytes.
    """
    border_s = step.timeline.compute[0].end_s
    ahead_s = step.step_s - border_s
    communication: list[Slice] = []
    for sent in step.timeline.communication:
        if sent.start_s < border_s:
            end_s = min(sent.end_s, border_s)
            communication.append(sent.model_copy(update={"start_s": sent.start_s + ahead_s, "end_s": end_s + ahead_s}))
        if sent.end_s > border_s:
            start_s = max(sent.start_s, border_s)
            left = {"start_s": start_s - border_s, "end_s": sent.end_s - border_s}
            communication.append(sent.model_copy(update=left | ({"nbytes": None} if sent.start_s < border_s else {})))
    backward, *rest = step.timeline.compute
    compute = [
        one.model_copy(update={"start_s": one.start_s - border_s, "end_s": one.end_s - border_s}) for one in rest
    ]
    compute.append(backward.model_copy(update={"start_s": ahead_s, "end_s": step.step_s}))
    return Timeline(
        label=step.timeline.label,
        compute=compute,
        communication=sorted(communication, key=lambda sent: (sent.start_s, sent.end_s)),
    )


def _first_use(layers: Sequence[ForwardLayer], count: int) -> list[int]:
    """Position in forward order of each gradient's layer. Raises ValueError unless each gradient has exactly one."""
    found = {index: turn for turn, layer in enumerate(layers) for index in layer.gradients}
    if sum(len(layer.gradients) for layer in layers) != count or sorted(found) != list(range(count)):
        raise ValueError(f"the layers do not hold each of the {count} gradients exactly once")
    return [found[index] for index in range(count)]
