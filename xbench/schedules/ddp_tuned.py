"""ddp-tuned: DDP's own reducer, with the exact plan's buckets.

`bucket_cap_mb_list` gives each of DDP's buckets its own size. DDP closes a bucket when its size reaches the cap, so
suitable caps reproduce the plan (`xbench.planning.plans.bucket_caps_mib`). A user of DDP gets it by changing one line.
Only newer torch versions have the argument.

DDP rebuilds its buckets after the first step. It calls `_compute_bucket_assignment_by_size` on its parameters in the
order in which their gradients became ready. The same call on tensors of the same sizes and dtypes gives the same
buckets (`formed`); these tensors are on the meta device and use no memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import _compute_bucket_assignment_by_size
from torch.nn.parallel import DistributedDataParallel

from xbench.errors import UsageError
from xbench.planning.plans import bucket_caps_mib
from xbench.planning.step import Gradient
from xbench.records import Plan
from xbench.schedules.base import AttachConfig
from xbench.schedules.ddp import Ddp
from xbench.schedules.served_parameters import trainable

_MIB = 1024 * 1024


def supported() -> bool:
    """True if this torch's DDP takes a size for each bucket."""
    return "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel.__init__).parameters


class DdpTuned(Ddp):
    """DistributedDataParallel(model, bucket_cap_mb_list=...)."""

    needs_plan = True

    def options(self, setup: AttachConfig) -> dict[str, Any]:
        """The caps that reproduce the plan's buckets. Raises UsageError where this torch does not take them."""
        if not supported():
            raise UsageError(
                "this torch's DDP has no bucket_cap_mb_list, which ddp-tuned needs", hint="it came after torch 2.11"
            )
        assert setup.buckets is not None  # because it needs a plan
        parameters = trainable(setup.model)
        plan = Plan(
            mode="ddp-tuned",
            buckets=[list(names) for names in setup.buckets],
            bucket_bytes=[
                sum(parameters[n].numel() * parameters[n].element_size() for n in names) for names in setup.buckets
            ],
            predicted_step_s=0.0,
            predicted_exposed_s=0.0,
        )
        caps = bucket_caps_mib(plan, {name: str(parameter.dtype) for name, parameter in parameters.items()})
        return {"bucket_cap_mb_list": caps}


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
