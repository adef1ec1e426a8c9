"""All-reduces of a tensor that is sent again and again, as a bucket is.

torch's own call asks the same questions at each step: what is reduced, how, in which group, is it one of many. Over
`xbench.sockets`, where who launches is who computes, the answers are kept.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor

from xbench.sockets.group import SocketGroup


def summing(tensor: Tensor, group: dist.ProcessGroup | None) -> Callable[[], dist.Work]:
    """What launches an all-reduce of this tensor over `group`, in place, each time it is called.

    `group` None: the default one. Raises as `SocketGroup.summing` does.
    """
    if isinstance(group, SocketGroup):
        return group.summing(tensor)

    def launch() -> dist.Work:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        assert work is not None  # what torch returns to a rank outside the group
        return work

    return launch
