"""Process group of the same ranks for the sole use of schedules.

Gloo identifies collectives by counting them: the k-th of one rank meets the k-th of the others. A schedule that
launches from several threads has one order on every rank, but its position among the main thread's collectives is
random. In its own group, no other collectives are counted.
"""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from xbench.host.tuning import are_gloo_threads_raised, raise_gloo_threads

_OWN: weakref.WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = weakref.WeakKeyDictionary()


def own_group(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """The group of the same ranks for the sole use of its schedules, made on first use.

    Collective: all ranks of the group must call it together. An emulated group is returned unchanged.
    """
    if group is None or dist.get_backend(group) == "emulated":
        return group
    found = _OWN.get(group)
    if found is None:
        raised = are_gloo_threads_raised()
        ranks = dist.get_process_group_ranks(group)
        made: Any = dist.new_group(ranks, timeout=_timeout(group), backend="gloo", use_local_synchronization=True)
        found = made
        assert found is not None
        dist.all_reduce(torch.zeros(1), group=found)  # its threads start with the first collective
        if raised:
            raise_gloo_threads()
        _OWN[group] = found
    return found


def _timeout(group: dist.ProcessGroup) -> timedelta | None:
    """The group's timeout, from a private field of torch; None: torch's default."""
    try:
        found: timedelta = group._get_backend(torch.device("cpu")).options._timeout
    except (AttributeError, RuntimeError):
        return None
    return found
