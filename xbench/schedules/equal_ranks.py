"""Equal parameters on all ranks at the start: a check, or a broadcast.

Averaged gradients keep equal parameters equal. They do not make different parameters equal, so ranks with different
parameters train different networks. DDP broadcasts rank 0's parameters and buffers when it is made. Here that happens
on request, and otherwise different parameters are refused. Buffers may differ: each rank keeps batch-norm statistics of
its own batches, so they differ on ranks that have trained before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module

from xbench.equal_ranks import apart
from xbench.errors import UsageError
from xbench.torch_compile import plain_name


def check_equal(model: Module, group: dist.ProcessGroup | None) -> None:
    """Compare all parameters over the group's ranks. Every rank must call it; all raise UsageError when they differ."""
    names = apart(_left_to_us(model, model.named_parameters()), group)
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise UsageError(
            f"ranks start with different parameters: {names[0]!r}{more}",
            hint="seed all ranks alike, load one checkpoint, or let attach(..., broadcast=True) copy rank 0's",
        )


def broadcast_state(model: Module, group: dist.ProcessGroup | None) -> None:
    """Overwrite every rank's parameters and buffers with those of the group's first rank. Every rank must call it."""
    source = dist.get_process_group_ranks(group)[0] if group is not None else 0
    with torch.no_grad():
        for _, tensor in _left_to_us(model, (*model.named_parameters(), *model.named_buffers())):
            value = tensor.detach().contiguous().clone()
            dist.broadcast(value, src=source, group=group)
            tensor.copy_(value)


def _left_to_us(model: Module, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The tensors by name, without those that the model excludes from DDP."""
    ignored = set(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))
    for name, tensor in tensors:
        if name not in ignored:
            yield plain_name(name), tensor
