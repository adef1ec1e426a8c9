"""Listening address of a server: it exposes the server to no more of the host's networks than the ranks need."""

from __future__ import annotations

import contextlib
import ipaddress
import socket

LOOPBACK = "127.0.0.1"


def listening_address(place: str, *, one_host: bool = True) -> str | None:
    """The address to listen on for a server that others reach at `place`; None: all addresses of this host.

    It is `place` itself if that is an IP address of this host. If all ranks are on `one_host`, a name is resolved here.
    Otherwise a name is useless: hosts may resolve it to different networks, and Debian resolves a host's own name to
    loopback. So is a loopback address then: some engines give it to rank 0 alone.
    """
    address = LOOPBACK if place == "localhost" else place
    with contextlib.suppress(OSError, ValueError):
        if one_host:
            address = socket.gethostbyname(address) if ":" not in address else address
        if ipaddress.ip_address(address).is_loopback and not one_host:
            return None
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
        return address
    return None
