"""Store of the rendezvous: torch.distributed's TCPStore, kept by rank 0 on one address.

TCPStore listens on every network of the host unless it is given a socket. It authenticates no client: any process that
reaches its port can stall a run, or pose as a peer whose objects the ranks unpickle. So it is given a socket on the
address by which the ranks reach rank 0: loopback for ranks on one machine, the namespace's own address on shaped links.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from xbench.listening import listening_address

BACKLOG = 2048
"""Pending connections of ranks, as many as torch's own socket allows."""


def rank_store(
    address: str, port: int, timeout: timedelta, serves: bool, *, one_host: bool = True, multi_tenant: bool = False
) -> TCPStore:
    """Connect to the store of rank 0. With `serves`, serve it too.

    With port 0 the kernel chooses the port; `port` of the result has it. `one_host`: whether all ranks are on this host
    (`listening_address`). Raises OSError or RuntimeError if the port is taken, and RuntimeError if no store is
    reachable within `timeout`.
    """
    options: dict[str, Any] = {"timeout": timeout, "wait_for_workers": False, "multi_tenant": multi_tenant}
    own = listening_address(address, one_host=one_host) if serves else None
    if own is None:
        return TCPStore(address, port, is_master=serves, **options)
    family = socket.AF_INET6 if ":" in own else socket.AF_INET
    server = socket.create_server((own, port), family=family, backlog=BACKLOG)
    port = server.getsockname()[1]
    listener = server.detach()  # the store closes it
    return TCPStore(own, port, is_master=True, master_listen_fd=listener, **options)
