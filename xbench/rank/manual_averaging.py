"""Averaging by hand: the result of every synchronous schedule, computed in the simplest way.

A step runs forward and backward on each rank by itself, averages each gradient over the ranks with one all-reduce, and
updates. It uses neither DistributedDataParallel nor our engine, so it is a reference for both.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module, Parameter

Gradients = dict[str, Tensor | None]


def trainable(model: Module) -> dict[str, Parameter]:
    """Return the parameters that get gradients, by name; each shared one appears once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def local_gradients(parameters: Mapping[str, Parameter]) -> Gradients:
    """Return a copy of this rank's gradients. Sparse ones become dense; a missing one is None."""
    return {name: None if p.grad is None else _dense(p.grad).detach().clone() for name, p in parameters.items()}


def averaged(
    parameters: Mapping[str, Parameter], local: Mapping[str, Tensor | None], group: dist.ProcessGroup | None = None
) -> Gradients:
    """Return the mean over ranks of each gradient; None for a parameter that no rank used. Collective.

    A rank without a gradient that another rank has contributes zeros, as under DDP.
    """
    if not parameters:
        return {}
    world_size = dist.get_world_size(group)
    device = next(iter(parameters.values())).device
    used = torch.tensor([float(local[name] is not None) for name in parameters], device=device)
    dist.all_reduce(used, op=dist.ReduceOp.MAX, group=group)
    result: Gradients = {}
    for (name, parameter), anyone in zip(parameters.items(), used.tolist(), strict=True):
        mine = local[name]
        if not anyone:
            result[name] = None
            continue
        total = torch.zeros_like(parameter) if mine is None else mine.clone()
        total = total.detach().contiguous().div_(world_size)
        dist.all_reduce(total, group=group)
        result[name] = total
    return result


def give(parameters: Mapping[str, Parameter], gradients: Mapping[str, Tensor | None]) -> None:
    """Set gradients on the parameters, for the optimizer's step."""
    for name, parameter in parameters.items():
        gradient = gradients[name]
        parameter.grad = None if gradient is None else gradient.clone()


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.layout != torch.strided else gradient
