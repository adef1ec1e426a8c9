"""The address on which a server of ours listens: no more of the host's networks than the ranks need."""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"


def listening_address(place: str, *, one_host: bool = True) -> str | None:
    """The address to listen on for a server that others reach at `place`; None: all addresses of this host.

    It is `place` itself where that is an IP address of this host. A name says nothing: hosts may resolve it to
    different networks, and Debian resolves a host's own name to loopback. Nor does a loopback address say anything
    unless all ranks are on `one_host`: some engines tell it to rank 0 alone.
    """
    address = LOOPBACK if place == "localhost" else place
    if (address.startswith("127.") or address == "::1") and not one_host:
        return None
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.inet_pton(family, address)
        with socket.socket(family) as probe:
            probe.bind((address, 0))
    except OSError:
        return None
    return address
