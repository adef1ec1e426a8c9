"""Facts about process groups that schedules depend on: workers, the cost of a wait, and collectives so far.

A process group of our own states them as attributes: `workers` of an emulated link, and `waits_on_stream`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist


def workers_of(group: dist.ProcessGroup | None) -> int:
    """Number of workers that average with each other: of an emulated group the emulated ones, else its ranks."""
    found: int | None = getattr(group, "workers", None)
    return dist.get_world_size(group) if found is None else found


def is_emulated(group: dist.ProcessGroup | None) -> bool:
    """True for a group of an emulated link."""
    return hasattr(group, "workers")


def backend_of(group: dist.ProcessGroup | None, device: torch.device) -> str:
    """Name of the backend that carries the group's tensors on this device: 'gloo' or 'nccl', say; '' without one.

    `dist.get_backend` has the name that the group was made with. It may be 'undefined', and may name several devices.
    """
    named = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
    return named.get(device.type, "")


def waits_on_stream(group: dist.ProcessGroup | None, device: torch.device) -> bool:
    """True if `Work.wait` makes the device's current stream wait and returns to the host at once, as NCCL's does.

    The host then runs ahead of the device, and `Work.is_completed` is mostly False when a schedule asks. Elsewhere
    (Gloo) a wait blocks the host until the collective has completed.
    """
    stated: bool | None = getattr(group, "waits_on_stream", None)
    if stated is not None:
        return stated
    return device.type == "cuda" and dist.is_initialized() and "nccl" in backend_of(group, device)


def collectives_begun() -> int:
    """Number of collectives that this process has begun, in all of its process groups that count them."""
    begun = 0
    groups: Iterable[Any] = dist.distributed_c10d._world.pg_map
    for group in groups:
        with suppress(RuntimeError):
            begun += group._get_sequence_number_for_group()
    return begun
