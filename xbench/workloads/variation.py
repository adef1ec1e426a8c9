"""Variation of a factory's batch by rank: different gradients on every rank, from data that the model accepts.

Equal batches give equal gradients, and then a schedule that forgets to average goes unnoticed. The first variation that
works is taken (`workloads.trial` tries them before the ranks start):

| variation | the batch of rank r > 0 |
| --- | --- |
| `samples` | half of the factory's samples, inputs and targets together, each twice; drawn by rank |
| `noise` | floating-point inputs with normal noise of a tenth of their own standard deviation |
| `sequence` | the other inputs rolled by r positions along their second dimension, against the targets |
| `none` | rank 0's |

Repeating samples creates no new values: codes stay codes, and labels stay with their samples, in the inputs too. It has
no effect on a single sample or on equal samples; hence the other variations. Shapes, dtypes and memory formats stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from xbench.spec import Variation
from xbench.workloads.workload import Inputs, tensors_in

NOISE = 0.1


def vary(batch: tuple[Inputs, Any], rank: int, variation: Variation = "samples") -> tuple[Inputs, Any]:
    """The batch (inputs, targets) of a rank. Draws from torch's generator, which the caller has seeded for the rank."""
    inputs, targets = batch
    if rank == 0 or variation == "none":
        return batch
    samples = next(tensors_in(inputs)).shape[0]
    if variation == "samples":
        if samples == 1:
            return batch
        order = drawn(samples)
        return _each(batch, lambda x: picked(x, order) if x.dim() and x.shape[0] == samples else x)  # type: ignore[no-any-return]
    if variation == "noise":
        return _each(inputs, noisy), targets
    return _each(inputs, lambda x: x.roll(rank, 1) if _is_sequence(x, samples) else x), targets


def drawn(samples: int) -> Tensor:
    """Indices of `samples` samples, in ascending order: half of them, rounded up, twice each.

    The order is ascending so that a sorted batch, by length for instance, stays sorted.
    """
    half = torch.randperm(samples, device="cpu")[: (samples + 1) // 2]
    return half.sort().values.repeat_interleave(2)[:samples]


def picked(tensor: Tensor, order: Tensor) -> Tensor:
    """These samples of a tensor, in its memory format; a leaf, as the factory's tensor is."""
    samples = tensor.detach().index_select(0, order.to(tensor.device))
    if tensor.layout == torch.strided:
        samples = torch.empty_like(tensor, requires_grad=False).copy_(samples)
    return samples.requires_grad_(tensor.requires_grad)


def noisy(tensor: Tensor) -> Tensor:
    """A floating-point tensor with noise. A tensor of a single value or a mask stays as it is."""
    spread = _spread(tensor) if tensor.is_floating_point() else 0.0
    return tensor + NOISE * spread * torch.randn_like(tensor) if spread else tensor


def _is_sequence(tensor: Tensor, samples: int) -> bool:
    return tensor.dim() > 1 and tensor.shape[0] == samples and not tensor.is_floating_point()


def _spread(tensor: Tensor) -> float:
    spread = float(tensor.detach().float().std(correction=0)) if tensor.numel() else 0.0
    return spread if spread < float("inf") else 0.0  # masks hold -inf; NaN compares false too


def _each(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _each(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_each(item, change) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(_each(item, change) for item in value)
    return value
