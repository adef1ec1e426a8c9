"""Ranks train one network only where they start from one: a check of what each has built."""

from __future__ import annotations

import hashlib
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist

from xbench.errors import WorkloadError
from xbench.workloads.build import Workload


def check_alike(workload: Workload) -> None:
    """Raise WorkloadError, on every rank, where their parameters differ in a bit.

    Collective: every rank of the default process group must call it.
    """
    mine: dict[str, Any] = {
        name: (str(parameter.dtype), tuple(parameter.shape), _digest(parameter))
        for name, parameter in workload.model.named_parameters()
    }
    everyone: list[dict[str, Any]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, mine)
    names = dict.fromkeys(chain(*everyone))
    apart = [name for name in names if any(one.get(name) != mine.get(name) for one in everyone)]
    if apart:
        more = f" and {len(apart) - 1} more" if len(apart) > 1 else ""
        raise WorkloadError(
            f"{workload.spec.title}: the ranks' models start apart, in {apart[0]!r}{more}",
            hint="the same seed is set on all ranks before the factory is called, so it must not set one of its own",
        )


def _digest(tensor: torch.Tensor) -> str:
    raw = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(raw.numpy().data, digest_size=16).hexdigest()
