"""A process group of the same ranks for one schedule alone.

Gloo tells collectives apart by counting them: the k-th of one rank meets the k-th of the others. A schedule that
launches from several threads launches in one order on every rank, but between which of the main thread's collectives is
chance. In a group of its own nobody counts with it.
"""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from xbench.host.tuning import are_gloo_threads_raised, raise_gloo_threads
from xbench.sockets.group import BACKEND as SOCKETS
from xbench.sockets.group import SocketGroup

_OWN: weakref.WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = weakref.WeakKeyDictionary()


def own_group(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """The group of the same ranks as this one that its schedules have for themselves, made when it is first asked for.

    Collective: all ranks of the group call it together. An emulated group is as it is.
    """
    if group is None or dist.get_backend(group) == "emulated":
        return group
    found = _OWN.get(group)
    if found is None:
        raised = are_gloo_threads_raised()
        ranks = dist.get_process_group_ranks(group)
        backend = SOCKETS if dist.get_backend(group) == SOCKETS else "gloo"
        made: Any = dist.new_group(ranks, timeout=_timeout(group), backend=backend, use_local_synchronization=True)
        found = made
        assert found is not None
        if isinstance(group, SocketGroup) and isinstance(found, SocketGroup):
            found.poll(group.poll_s)
        dist.all_reduce(torch.zeros(1), group=found)  # its threads begin with the first collective
        if raised:
            raise_gloo_threads()
        _OWN[group] = found
    return found


def _timeout(group: dist.ProcessGroup) -> timedelta | None:
    """The patience of the group, which torch keeps to itself; None: torch's default."""
    try:
        found: timedelta = group._get_backend(torch.device("cpu")).options._timeout
    except (AttributeError, RuntimeError):
        return None
    return found
