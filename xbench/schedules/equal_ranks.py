"""Ranks that start with the same parameters: checked, or made so.

Averaged gradients keep equal parameters equal. They do not make different parameters equal, so ranks that start apart
train different networks. DDP broadcasts rank 0's parameters and buffers when it is made; here that is done on request,
and otherwise ranks whose parameters differ are refused. Buffers may differ: each rank keeps batch-norm statistics of
its own batches, so ranks that have trained before differ in them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from xbench.compiled import plain_name
from xbench.errors import UsageError


def check_equal(model: Module, group: dist.ProcessGroup | None) -> None:
    """Compare digests of all parameters over the group's ranks. Every rank must call it.

    Raises UsageError on all ranks when they differ.
    """
    mine = {name: _described(tensor) for name, tensor in _left_to_us(model, model.named_parameters())}
    digests: list[dict[str, str]] = [{}] * dist.get_world_size(group)
    dist.all_gather_object(digests, mine, group=group)
    first = digests[0]
    for rank, other in enumerate(digests):
        if list(other) != list(first):
            strange = next(iter([*(set(other) ^ set(first)), *other]))
            raise UsageError(
                f"ranks have different models: {strange!r} of rank {rank} and rank 0",
                hint="build the same model on every rank",
            )
        unequal = [name for name in first if other[name] != first[name]]
        if unequal:
            more = f" and {len(unequal) - 1} more" if len(unequal) > 1 else ""
            raise UsageError(
                f"ranks start with different values: {unequal[0]!r}{more} of rank {rank} differs from rank 0's",
                hint="seed all ranks alike, load one checkpoint, or let attach(..., broadcast=True) copy rank 0's",
            )


def broadcast_state(model: Module, group: dist.ProcessGroup | None) -> None:
    """Overwrite every rank's parameters and buffers by those of the group's first rank. Every rank must call it."""
    source = dist.get_process_group_ranks(group)[0] if group is not None else 0
    with torch.no_grad():
        for _, tensor in _left_to_us(model, (*model.named_parameters(), *model.named_buffers())):
            value = tensor.detach().contiguous().clone()
            dist.broadcast(value, src=source, group=group)
            tensor.copy_(value)


def digest(value: Tensor) -> str:
    """A digest of the value's bits, in the order of its elements; of a wrapper tensor, that of what it wraps."""
    if is_traceable_wrapper_subclass(value):
        names, _ = value.__tensor_flatten__()
        return " ".join(digest(getattr(value, name)) for name in names)
    plain = value.detach().as_subclass(Tensor)
    raw = plain.contiguous().cpu().view(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(raw.data, digest_size=16).hexdigest()


def _described(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype} {tensor.requires_grad} {digest(tensor)}"


def _left_to_us(model: Module, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """These by name, without what the model tells DDP to leave alone."""
    ignored = set(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))
    for name, tensor in tensors:
        if name not in ignored:
            yield plain_name(name), tensor
