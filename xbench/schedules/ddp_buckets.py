"""Buckets that DistributedDataParallel forms from a list of caps, by torch's own function.

DDP rebuilds its buckets after the first step. It calls `_compute_bucket_assignment_by_size` on its parameters in the
order in which their gradients became ready. The same call on tensors of the same sizes and dtypes gives the same
buckets; these tensors are on the meta device and use no memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._C._distributed_c10d import _compute_bucket_assignment_by_size

from xbench.planning.step import Gradient

_MIB = 1024 * 1024


def formed(gradients: Sequence[Gradient], caps_mib: Sequence[float]) -> list[list[str]]:
    """The names in each bucket that DDP forms from `gradients`, in ready order, with these caps [MiB].

    Buckets that reach their cap come first, in the order in which they do. Raises ValueError for a dtype that torch
    does not have, and for bytes that are not a multiple of its size.
    """
    tensors = [_tensor(gradient) for gradient in gradients]
    limits = [int(cap * _MIB) for cap in caps_mib]  # the conversion of DistributedDataParallel
    places = list(range(len(tensors)))
    buckets, _ = _compute_bucket_assignment_by_size(tensors, limits, [False] * len(tensors), places)
    return [[gradients[index].name for index in bucket] for bucket in buckets]


def _tensor(gradient: Gradient) -> torch.Tensor:
    dtype = getattr(torch, gradient.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch has no dtype {gradient.dtype!r}")
    elements, rest = divmod(gradient.nbytes, dtype.itemsize)
    if rest:
        raise ValueError(f"{gradient.name!r} has {gradient.nbytes} bytes, not a multiple of {dtype.itemsize}")
    return torch.empty(elements, dtype=dtype, device="meta")
