"""Comparison of tensors that should be equal on all ranks, by their digests, and exchanges of Python objects."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def digest(value: Tensor, before: str = "") -> str:
    """A digest of the value's bits, in the order of its elements, and of the digest `before`.

    For a wrapper tensor it is the digest of the tensors that it wraps.
    """
    if is_traceable_wrapper_subclass(value):
        names, _ = value.__tensor_flatten__()
        for name in names:
            before = digest(getattr(value, name), before)
        return before
    plain = value.detach().as_subclass(Tensor).resolve_conj().resolve_neg()
    raw = plain.contiguous().cpu().view(-1).view(torch.uint8).numpy()
    hasher = hashlib.blake2b(raw.data, digest_size=16)
    hasher.update(before.encode())
    return hasher.hexdigest()


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Make a GPU the current one: torch sends Python objects over NCCL from there. DDP's users need not set one."""
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        yield


def differing(tensors: Iterable[tuple[str, Tensor]], group: dist.ProcessGroup | None = None) -> list[str]:
    """Names of tensors whose shape, dtype, `requires_grad` or value differ between ranks, or that some ranks lack.

    Collective: every rank of the group must call it, and all get the same answer. A group of all ranks may have a
    backend that supports gradients alone, so the default group gathers for it.
    """
    if group is not None and dist.get_world_size(group) == dist.get_world_size():
        group = None
    values = dict(tensors)
    local = {name: (tuple(t.shape), str(t.dtype), t.requires_grad, digest(t)) for name, t in values.items()}
    by_rank: list[dict[str, tuple[tuple[int, ...], str, bool, str]]] = [{} for _ in range(dist.get_world_size(group))]
    with on_device(next((t.device for t in values.values()), torch.device("cpu"))):
        dist.all_gather_object(by_rank, local, group=group)
    names = dict.fromkeys(chain(*by_rank))
    return [name for name in names if any(other.get(name) != by_rank[0].get(name) for other in by_rank)]
