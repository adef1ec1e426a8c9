"""Model of partial backpropagation: compute per worker, bytes sent, and step time. `schedules.spb` runs it.

Layers in gradient-ready order (1 = nearest the loss) are cut into k bands of equal backward time, as nearly as whole
layers allow. A worker of level i computes the gradients of bands 1 to i. M_b: bytes of band b's gradients. N: workers.

- *temporal*: at step t all workers have level (t mod k) + 1. A band is sent when it is computed: band b in k−b+1 of k
  steps, by ring all-reduce, with 2(N−1)/N·M_b sent per worker.
- *spatial*: worker r always has level (r mod k) + 1. The n_b workers of level ≥ b compute band b, and average it in an
  all-reduce among themselves. Then the first worker of level b broadcasts the average to the others in a binomial tree.

A spatial *step* lasts as long as that of its full-depth workers, whose computation is unchanged. Only the other
workers' computation and memory, and the bytes, decrease.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from xbench.errors import SpecError
from xbench.modes import EXACT
from xbench.planning.plans import Planner
from xbench.planning.simulate import Buckets
from xbench.records import Layer
from xbench.spec import known_options, parse_int

Variant = Literal["spatial", "temporal"]
LEVELS_OF_A_CYCLE = 4
"""Default k of the temporal variant."""

MAX_LEVELS = 64


def options(text: str, given: dict[str, str]) -> dict[str, str]:
    """The checked options of mode `spb`: variant=spatial|temporal and k=2..64, in that order. Raises SpecError."""
    known_options(text, given, ("variant", "k"))
    checked: dict[str, str] = {}
    if "variant" in given:
        if given["variant"] not in ("spatial", "temporal"):
            raise SpecError(
                f"{text!r}: variant={given['variant']} does not exist", hint="variant=spatial or variant=temporal"
            )
        checked["variant"] = given["variant"]
    if "k" in given:
        checked["k"] = str(parse_int(text, "k", given["k"], 2, MAX_LEVELS))
    return checked


def cycle(options: Mapping[str, str]) -> int:
    """Number of steps after which the depths repeat: only whole cycles have a mean step."""
    return int(options.get("k", LEVELS_OF_A_CYCLE)) if options.get("variant") == "temporal" else 1


@dataclass(frozen=True)
class Split:
    """Level of each worker at each step. Raises SpecError where no worker would have full depth."""

    variant: Variant
    levels: int
    workers: int

    def __post_init__(self) -> None:
        if self.variant == "spatial" and self.levels > self.workers:
            raise SpecError(
                f"spb with k={self.levels} needs a worker for each level, and there are {self.workers}",
                hint=f"write k={self.workers} or fewer, or variant=temporal",
            )

    @classmethod
    def of(cls, options: Mapping[str, str], workers: int) -> Split:
        """Build from checked options. Defaults: spatial with one level per worker; four levels for temporal."""
        if options.get("variant") == "temporal":
            return cls("temporal", cycle(options), workers)
        return cls("spatial", int(options.get("k", workers)), workers)

    def level(self, worker: int, step: int) -> int:
        """Number of bands that this worker (0-based) computes at this step (0-based)."""
        return (step if self.variant == "temporal" else worker) % self.levels + 1

    def members(self, band: int) -> list[int]:
        """Workers that average this band with each other in a step that sends it."""
        if self.variant == "temporal":
            return list(range(self.workers))
        return [worker for worker in range(self.workers) if self.level(worker, 0) >= band]

    def receivers(self, band: int) -> list[int]:
        """Workers of the broadcast of the average, its sender first. Empty where all workers compute the band."""
        members = self.members(band)
        rest = [worker for worker in range(self.workers) if worker not in members]
        # The first worker of level b sends: the least busy of the members, and a different one for every band.
        return [band - 1, *rest] if rest else []

    def sent_bytes(self, band_bytes: Sequence[float]) -> list[float]:
        """Bytes that each worker sends per step, averaged over a cycle. `band_bytes[b-1]`: M_b."""
        sent = [0.0] * self.workers
        for band, nbytes in enumerate(band_bytes, start=1):
            members, tree = self.members(band), self.receivers(band)
            steps = (self.levels - band + 1) / self.levels if self.variant == "temporal" else 1.0
            for worker in members:
                sent[worker] += steps * 2 * (len(members) - 1) / len(members) * nbytes
            for place, worker in enumerate(tree):
                sent[worker] += broadcasts(place, len(tree)) * nbytes
        return sent

    def equivalent(self, band: int) -> float:
        """All-reduce bytes of all workers that load the busiest link as much as one byte of this band."""
        whole = 2 * (self.workers - 1) / self.workers
        if whole == 0:
            return 1.0
        members, tree = self.members(band), self.receivers(band)
        return (2 * (len(members) - 1) / len(members) + broadcasts(0, len(tree))) / whole


def broadcasts(place: int, size: int) -> int:
    """Number of times that the member at this place of a binomial tree (0: the root) sends the whole message."""
    rounds = range((size - 1).bit_length()) if size > 1 else range(0)
    return sum(place < 2**i and place + 2**i < size for i in rounds)


def backward_s_of(layers: Sequence[Layer]) -> dict[str, float]:
    """Backward seconds by parameter, in ready order: each layer's time divided equally among its tensors."""
    return {
        tensor.name: layer.backward_s / len(layer.tensors)
        for layer in layers
        for tensor in sorted(layer.tensors, key=lambda tensor: tensor.ready_s)
    }


def bands(backward_s: Mapping[str, float], levels: int) -> dict[str, int]:
    """The band (1 to `levels`) of every parameter. `backward_s`: seconds by parameter, in ready order.

    Consecutive parameters of one module stay together. The first layer is always in band 1: a level without a gradient
    would have nothing to train.
    """
    layers = [list(names) for _, names in itertools.groupby(backward_s, key=lambda name: name.rpartition(".")[0])]
    times = [sum(backward_s[name] for name in names) for names in layers]
    whole = sum(times)
    found: dict[str, int] = {}
    until = 0.0
    for place, (names, seconds) in enumerate(zip(layers, times, strict=True)):
        middle = (until + seconds / 2) / whole if whole > 0 else (place + 0.5) / len(layers)
        until += seconds
        band = 1 if place == 0 else max(1, min(levels, math.ceil(middle * levels)))
        found.update(dict.fromkeys(names, band))
    return found


def split_buckets(buckets: Sequence[Sequence[str]], band_of: Mapping[str, int]) -> list[list[str]]:
    """The buckets cut at the borders of bands, band by band: no bucket holds gradients of two bands."""
    cut: dict[tuple[int, int], list[str]] = {}
    for place, bucket in enumerate(buckets):
        for name in bucket:
            cut.setdefault((band_of[name], place), []).append(name)
    return [cut[key] for key in sorted(cut)]


def predict(
    planner: Planner,
    buckets: Sequence[Sequence[str]],
    layers: Sequence[Layer],
    options: Mapping[str, str],
    workers: int,
) -> float:
    """The predicted step [s] with these options: of the full-depth worker (spatial), or the mean over a cycle.

    T of fewer workers, and of a broadcast, is not measured. Bytes are scaled to those of an all-reduce of all workers
    that loads the busiest link as much.
    """
    split = Split.of(options, workers)
    step = planner.step
    band_of = bands(backward_s_of(layers), split.levels)
    cut = split_buckets(buckets, band_of)
    took: list[float] = []
    for level in range(1, split.levels + 1) if split.variant == "temporal" else [split.levels]:
        kept = [gradient for gradient in step.gradients if band_of[gradient.name] <= level]
        share = sum(gradient.nbytes for gradient in kept) / step.grad_bytes
        backward_s = step.backward_s if level == split.levels else max(gradient.ready_s for gradient in kept)
        loads = tuple(
            replace(gradient, nbytes=round(gradient.nbytes * split.equivalent(band_of[gradient.name])))
            for gradient in kept
        )
        whole_s = step.forward_s + step.backward_s
        earlier = (step.forward_s + backward_s) / whole_s if whole_s > 0 else 1.0
        partial = replace(
            step, gradients=loads, backward_s=backward_s, optimizer_s=step.optimizer_s * share, loaded=None,
            loaded_each=None, accumulate_s=step.accumulate_s * earlier,
        )  # fmt: skip
        place = {gradient.name: index for index, gradient in enumerate(loads)}
        chosen: Buckets = [[place[name] for name in bucket] for bucket in cut if bucket[0] in place]
        took.append(replace(planner, step=partial).simulate(EXACT, chosen).step_s)
    return sum(took) / len(took)
