"""How ranks that share a store come to be connected, each to each, once or several times.

Every rank listens on the address by which others reach it and says so in the store; of two, the higher rank calls.
Callers first send the group's secret, which only the store knows, their rank, and which connection of the two this is.
Others are hung up on.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
from contextlib import suppress
from typing import Protocol

import psutil

from xbench.errors import UsageError

INTERFACE = "GLOO_SOCKET_IFNAME"
"""The variable that says which network to take: Gloo's own, so that both take the same."""

BUFFER_BYTES = 16 << 20
"""Of a connection, each way: room for what is on its way while ranks compute. Else the kernel decides."""

HELLO_S = 10.0
"""How long a caller may take to say who it is: one that says nothing must not keep the others waiting."""

_SECRET_BYTES = 16
_HELLO = struct.Struct(f"!{_SECRET_BYTES}sII")
_SNDBUFFORCE, _RCVBUFFORCE = 32, 33
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


class Store(Protocol):
    """What is needed of torch's stores."""

    def set(self, key: str, value: str) -> None:
        """Keep."""

    def get(self, key: str) -> bytes:
        """Wait for it to be set, and return it."""
        ...


def connected(store: Store, rank: int, size: int, lanes: int, timeout_s: float) -> list[dict[int, socket.socket]]:
    """For each of the lanes the connection to every other rank; all ranks call it together.

    Raises UsageError for an interface that is not there and TimeoutError where a rank does not come.
    """
    deadline_s = time.monotonic() + timeout_s
    found: list[dict[int, socket.socket]] = [{} for _ in range(lanes)]
    if rank == 0:
        store.set("secret", secrets.token_hex(_SECRET_BYTES))
    host = _own_address()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, backlog=size * lanes) as server:
        port = server.getsockname()[1]
        store.set(f"rank{rank}", f"{host} {port}")
        secret = bytes.fromhex(store.get("secret").decode())
        for other in range(rank):
            host, port = store.get(f"rank{other}").decode().split()
            for lane in range(lanes):
                found[lane][other] = _called(host, int(port), _HELLO.pack(secret, rank, lane), deadline_s)
        while any(len(of_lane) < size - 1 for of_lane in found):
            caller, lane, connection = _accepted(server, secret, deadline_s, size, lanes)
            found[lane][caller] = connection
    for of_lane in found:
        for connection in of_lane.values():
            _prepare(connection)
    return found


def _called(host: str, port: int, hello: bytes, deadline_s: float) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=_left_s(deadline_s))
    connection.sendall(hello)
    return connection


def _accepted(
    server: socket.socket, secret: bytes, deadline_s: float, size: int, lanes: int
) -> tuple[int, int, socket.socket]:
    """The next caller that knows the secret: its rank, the lane, the connection."""
    while True:
        server.settimeout(_left_s(deadline_s))
        connection, _ = server.accept()
        with suppress(OSError):
            connection.settimeout(min(HELLO_S, _left_s(deadline_s)))
            said = connection.recv(_HELLO.size, socket.MSG_WAITALL)
            if len(said) == _HELLO.size:
                theirs, caller, lane = _HELLO.unpack(said)
                if secrets.compare_digest(theirs, secret) and caller < size and lane < lanes:
                    return caller, lane, connection
        connection.close()


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("not every rank came to connect")
    return left_s


def _prepare(connection: socket.socket) -> None:
    """Blocking, without delay, and with room for what is on its way."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (_SNDBUFFORCE, _RCVBUFFORCE):
        with suppress(OSError):  # root's; the kernel's own sizes grow with what is sent
            connection.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)


def _own_address() -> str:
    """That of the interface which `INTERFACE` names, or else the one by which this host reaches the master."""
    name = os.environ.get(INTERFACE, "").split(",")[0].removeprefix("=")
    if name:
        addresses = psutil.net_if_addrs().get(name, [])
        for family in _FAMILIES:
            for address in addresses:
                if address.family == family and not address.address.startswith("fe80:"):
                    return str(address.address)
        raise UsageError(f"{INTERFACE} names {name!r}, which has no address here")
    master = os.environ.get("MASTER_ADDR", "")
    if not master:
        return "127.0.0.1"
    family, _, _, _, place = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.connect(place)  # sends nothing
        return str(asking.getsockname()[0])
