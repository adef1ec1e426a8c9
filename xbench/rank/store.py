"""The store at which ranks meet: torch.distributed's TCPStore, kept by rank 0 on one address.

TCPStore listens on every network of the host unless it is given a socket. It asks nobody who they are: whoever reaches
its port can stall a run, or name itself as a peer whose objects the ranks unpickle. So it is given a socket on the
address by which the ranks reach rank 0: loopback for ranks on one machine, the namespace's own address on shaped links.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from xbench.listening import listening_address

BACKLOG = 2048
"""Ranks that may connect at once, as many as torch's own socket takes."""


def rank_store(
    address: str, port: int, timeout: timedelta, serves: bool, *, one_host: bool = True, multi_tenant: bool = False
) -> TCPStore:
    """A connection to the store of rank 0 and, where it `serves`, the store itself.

    A store at port 0 takes one that the kernel chooses, and `port` of the result says which. `one_host`: all ranks are
    on this host; see `listening_address`. Raises OSError or RuntimeError where the port is taken, and RuntimeError
    where no store is there within `timeout`.
    """
    options: dict[str, Any] = {"timeout": timeout, "wait_for_workers": False, "multi_tenant": multi_tenant}
    own = listening_address(address, one_host=one_host) if serves else None
    if own is None:
        return TCPStore(address, port, is_master=serves, **options)
    family = socket.AF_INET6 if ":" in own else socket.AF_INET
    server = socket.create_server((own, port), family=family, backlog=BACKLOG)
    port = server.getsockname()[1]
    listener = server.detach()  # the store closes it
    try:
        return TCPStore(own, port, is_master=True, master_listen_fd=listener, **options)
    except TypeError:  # a torch whose store takes no socket
        os.close(listener)
        return TCPStore(own, port, is_master=True, **options)
