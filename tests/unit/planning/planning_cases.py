"""Cost models, contention, layers and buckets for the tests of planning."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from xbench.planning import merge
from xbench.planning.contention import Contention
from xbench.planning.cost import CostCurve, CostFunction
from xbench.planning.next_forward import ForwardLayer, NetworkModel, as_step, part_sizes
from xbench.planning.plans import Planner
from xbench.planning.simulate import Buckets, Step, bucket_bytes
from xbench.planning.step import Gradient, StepModel
from xbench.records import CostModel, Layer, StepTimes, Tensor


def line(alpha_s: float, beta_s_per_byte: float, workers: int = 2) -> CostModel:
    """T(M) = α + βM, each known to 10 %."""
    return CostModel(
        backend="gloo", world_size=workers, alpha_s=alpha_s, beta_s_per_byte=beta_s_per_byte,
        alpha_ci95=(0.9 * alpha_s, 1.1 * alpha_s), beta_ci95=(0.9 * beta_s_per_byte, 1.1 * beta_s_per_byte),
        max_relative_residual=0.0, points=[],
    )  # fmt: skip


def planner_of(gradients: Sequence[Gradient], cost: CostModel | None, **parts: float) -> Planner:
    """Planner of a step of these parts [s] without contention."""
    return Planner(StepModel(tuple(gradients), **parts), cost)


def dear(
    layers: Sequence[ForwardLayer], step: StepModel, buckets: Buckets, curve: CostFunction,
    contention: Contention | None = None,
) -> Step:  # fmt: skip
    return as_step(*NetworkModel(layers, step, curve, contention).dear(buckets, detailed=True))


def priority(
    layers: Sequence[ForwardLayer], step: StepModel, curve: CostFunction, *, buckets: Buckets | None = None,
    partition_bytes: float, credit_bytes: float = 0.0, order: Sequence[int] | None = None,
    contention: Contention | None = None,
) -> Step:  # fmt: skip
    """The step with one bucket a tensor, unless `buckets` are given, in parts of at most `partition_bytes`."""
    buckets = merge.wfbp(step.gradients) if buckets is None else buckets
    parts = [part_sizes(nbytes, partition_bytes) for nbytes in bucket_bytes(step.gradients, buckets)]
    net = NetworkModel(layers, step, curve, contention)
    return as_step(*net.priority(buckets, parts, credit_bytes=credit_bytes, order=order, detailed=True))


def constant(rho: float, sigma: float) -> Contention:
    """Collectives take `rho` times as long beside computation, which takes `sigma` times as long beside them."""
    return Contention(np.zeros(1), np.full((2, 1), rho), np.full((2, 1), sigma))


def gradients_of(ready: list[float], nbytes: list[int], dtypes: list[str] | None = None) -> list[Gradient]:
    kinds = dtypes or ["float32"] * len(ready)
    return [
        Gradient(f"w{place}", size, at, kind)
        for place, (at, size, kind) in enumerate(zip(sorted(ready), nbytes, kinds, strict=True))
    ]


def cut(count: int, cuts: int) -> Buckets:
    """Contiguous buckets of `count` gradients, with a cut behind each gradient whose bit is set."""
    edges = [0, *(k for k in range(1, count) if cuts >> (k - 1) & 1), count]
    return [list(range(a, b)) for a, b in itertools.pairwise(edges)]


def partitions(count: int) -> list[Buckets]:
    """All contiguous partitions in order."""
    return [cut(count, cuts) for cuts in range(2 ** (count - 1))]


def layer(
    name: str, tensors: Sequence[tuple[int, float] | tuple[int, float, float | None]], forward_s: float = 0.1,
    backward_s: float = 0.1,
) -> Layer:  # fmt: skip
    """A layer of tensors (bytes, ready, ready under load), named `name.0` and so on."""
    made = [
        Tensor(name=f"{name}.{k}", elements=nbytes // 4, bytes=nbytes, dtype="float32", ready_s=ready_s,
               ready_loaded_s=loaded_s[0] if loaded_s else None)
        for k, (nbytes, ready_s, *loaded_s) in enumerate(tensors)
    ]  # fmt: skip
    nbytes = sum(tensor.bytes for tensor in made)
    return Layer(
        name=name, kind="Linear", parameters=nbytes // 4, grad_bytes=nbytes, forward_s=forward_s,
        backward_s=backward_s, ready_s=max(tensor.ready_s for tensor in made), share=0.1, tensors=made,
    )  # fmt: skip


def step_times(bare_s: float = 4.0, **parts: float) -> StepTimes:
    """A step of 1 s forward, 2 s backward and 1 s optimizer, which takes `bare_s` without instruments."""
    values = {"forward_s": 1.0, "backward_s": 2.0, "optimizer_s": 1.0} | parts
    return StepTimes(
        **values, step_s=4.0, step_ci95=(4.0, 4.0), uninstrumented_step_s=bare_s, uninstrumented_ci95=(bare_s, bare_s),
        overhead_ratio=0.0, overhead_ci95=(0.0, 0.0), steps=4, warmup_steps=0,
    )  # fmt: skip


BYTE_A_SECOND = CostCurve.line(0.0, 1.0)

# c is nearest the loss: forward runs a, b, c, a second each, and every gradient takes two seconds on the link.
NET = StepModel((Gradient("c", 2, 1.0), Gradient("b", 2, 2.0), Gradient("a", 2, 3.0)), 3.0, 3.0, 0.0)
AHEAD = [ForwardLayer(name, 1.0, (index,)) for name, index in (("a", 2), ("b", 1), ("c", 0))]


def sent(step: Step) -> list[tuple[str, float, float]]:
    """Name, start and end of each transfer."""
    return [(s.name, s.start_s, s.end_s) for s in step.timeline.communication]
