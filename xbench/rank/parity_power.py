"""Averaging by hand, and the test of the parity check: whether it refuses deliberately wrong schedules.

Averaging by hand gives the result of every synchronous schedule in the simplest way: forward and backward on each rank,
one all-reduce of each gradient, an update. It uses neither DistributedDataParallel nor our engine, so it is a reference
for both.

A check that every schedule passes proves nothing. So the optimizer makes the steps of four wrong schedules from the
ranks' own gradients at the reference's states: one does not average, one omits a layer, one sums, one is a step late
(docs/how-it-measures.md). An update of a parameter depends on its own gradient alone, so the first schedule's steps
show for every layer what omitting it would. If one would pass, passing modes are "not shown" to train the same network.

A layer is left out if its gradient is at most 2·10⁻⁵ of the largest, or exactly zero and so the same on all ranks.
Omitting it would change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module, Parameter

from xbench.profilers.layers import ROOT_NAME
from xbench.rank.parity_checker import NULL, ParityChecker, gathered, largest
from xbench.rank.snapshot import Snapshot, host_copy, trained
from xbench.workloads.workload import Workload

Gradients = dict[str, Tensor | None]
NULL_LAYER = 0.02 * NULL

ALONE, SUMMED, LATE = "does not average", "sums in place of averaging", "is a step late"
"""Faults of the schedules that the check is tested with."""


def trainable(model: Module) -> dict[str, Parameter]:
    """Return the parameters that get gradients, by name; each shared one appears once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def local_gradients(parameters: Mapping[str, Parameter]) -> Gradients:
    """Return a copy of this rank's gradients in the host's memory. Sparse ones become dense; a missing one is None."""
    found = {name: p.grad for name, p in parameters.items()}
    dense = {name: g.to_dense() if g is not None and g.layout != torch.strided else g for name, g in found.items()}
    return {name: None if g is None else host_copy(g) for name, g in dense.items()}


def averaged(parameters: Mapping[str, Parameter], local: Mapping[str, Tensor | None]) -> Gradients:
    """Return the mean over ranks of each gradient, in the host's memory; None for one that no rank has. Collective.

    A rank without a gradient that another rank has contributes zeros, as under DDP.
    """
    if not parameters:
        return {}
    world_size = dist.get_world_size()
    device = next(iter(parameters.values())).device
    used = torch.tensor([float(local[name] is not None) for name in parameters], device=device)
    dist.all_reduce(used, op=dist.ReduceOp.MAX)
    result: Gradients = {}
    for (name, parameter), anyone in zip(parameters.items(), used.tolist(), strict=True):
        mine = local[name]
        if not anyone:
            result[name] = None
            continue
        total = torch.zeros_like(parameter) if mine is None else mine.to(parameter.device, copy=True)
        total = total.detach().contiguous().div_(world_size)
        dist.all_reduce(total)
        result[name] = total.cpu()
    return result


def give(parameters: Mapping[str, Parameter], gradients: Mapping[str, Tensor | None], factor: int = 1) -> None:
    """Set gradients, times `factor`, on the parameters, for the optimizer's step. The given ones stay as they are."""
    for name, parameter in parameters.items():
        gradient = gradients[name]
        parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True).mul_(factor)


def not_shown(
    workload: Workload,
    snapshot: Snapshot,
    new_checker: Callable[[], ParityChecker],
    local: Sequence[Gradients],
    averaged: Sequence[Gradients],
    note: Callable[[str], None] = lambda _: None,
) -> str | None:
    """Return why the parity check would pass a wrong schedule on this workload; None if it refuses all of them.

    `local[s]` and `averaged[s]` are the gradients of step s at the reference's states. `new_checker()` returns a new
    `ParityChecker`, and `note` is called with the current work. Collective: every rank must call it, and
    all get the same answer.
    """
    world_size = dist.get_world_size()

    def off(wrong: str, gradients: Sequence[Mapping[str, Tensor | None]], factor: int = 1) -> dict[str, float]:
        """Return the deviation [tolerances] of each parameter on the rank where it is largest.

        `wrong` says what is wrong with the schedule that takes steps with these gradients times `factor`.
        """
        judged = new_checker()

        def steps() -> None:
            for step, each in enumerate(gradients, 1):
                note(f"gate: a schedule that {wrong}, step {step}")
                give(trainable(workload.model), each, factor)
                judged.step(norm=workload.update())

        trained(workload, snapshot, steps)
        everyone = gathered(judged.tolerances())
        return {name: _most([rank.get(name, 0.0) for rank in everyone]) for name in everyone[0]}

    alone = off(ALONE, local)
    if _passes(alone):
        return _said(ALONE, alone, ": the gradients of the ranks are too much alike")
    layer = next((name for name, most in _by_layer(alone, averaged).items() if not most > 1), None)
    if layer is not None:
        return f"a schedule that forgets {layer!r} would pass: its gradients are too much alike on all ranks"
    summed = off(SUMMED, averaged, world_size)
    if _passes(summed):
        return _said(SUMMED, summed)
    first = averaged[:1] if len(averaged) > 1 else [dict.fromkeys(averaged[0], None)]
    late = off(LATE, [*first, *averaged[:-1]])
    if _passes(late):
        return _said(LATE, late, ": its gradients hardly change from step to step")
    return None


def _most(values: Sequence[float]) -> float:
    return math.inf if any(map(math.isnan, values)) else max(values)


def _passes(off: Mapping[str, float]) -> bool:
    return not any(value > 1 for value in off.values())


def _said(what: str, off: Mapping[str, float], why: str = "") -> str:
    most = max(off.values(), default=0.0)
    return f"a schedule that {what} would pass{why} (off by {most:.2g} of the tolerance)"


def _by_layer(off: Mapping[str, float], averaged: Sequence[Gradients]) -> dict[str, float]:
    """Return the largest deviation in each module that has a significant gradient."""
    sizes: dict[str, float] = {}
    for step in averaged:
        for name, gradient in step.items():
            if gradient is not None and gradient.numel():
                sizes[name] = max(sizes.get(name, 0.0), largest(gradient))
    least = NULL_LAYER * max(sizes.values(), default=0.0)
    layers: dict[str, float] = {}
    for name, size in sizes.items():
        layer = name.rpartition(".")[0] or ROOT_NAME
        if size > least or layer in layers:
            layers[layer] = max(layers.get(layer, 0.0), off.get(name, 0.0))
    return layers
