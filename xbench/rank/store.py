"""Stores of the ranks: torch.distributed's TCPStore for the rendezvous, and notes that the ranks of all jobs share.

TCPStore listens on every network of the host unless it is given a socket. It authenticates no client: any process that
reaches its port can stall a run, or pose as a peer whose objects the ranks unpickle. So it is given a socket on the
address by which the ranks reach rank 0: loopback for ranks on one machine, the namespace's own address on shaped links.

Notes are plans and refused modes. Under our own launcher they are files in the launch's folder, which the parent reads
afterwards. Ranks that another launcher started need not share a disk, so their notes are in the store of the
rendezvous.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from xbench.listening import listening_address
from xbench.spec import ModeSpec

BACKLOG = 2048
"""Pending connections of ranks, as many as torch's own socket allows."""

ALIKE_S = 60.0
"""Time in which all ranks raise an error that they raise alike [s]."""


MEETING_S = 0.005
"""Time between two looks for the other job's note [s]."""


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


# --- notes -----------------------------------------------------------------------------------------------------------


class KeyValueStore(Protocol):
    """Notes by name. A barrier separates writing a note from reading it."""

    def put(self, name: str, text: str) -> None:
        """Write a note. It replaces an older one of that name."""

    def get(self, name: str) -> str:
        """Read a note."""

    def has(self, name: str) -> bool:
        """True if there is such a note."""


class FileStore:
    """Notes as files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, text: str) -> None:
        """Write the note's file atomically, even if several ranks write it at once."""
        part = self._folder / f".{name}.{os.getpid()}.part"
        part.write_text(text)
        part.replace(self._folder / name)

    def get(self, name: str) -> str:
        """Read the note's file. Raises OSError."""
        return (self._folder / name).read_text()

    def has(self, name: str) -> bool:
        """True if the note's file exists."""
        return (self._folder / name).exists()


class TorchStore:
    """Notes as keys of a torch.distributed store."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def put(self, name: str, text: str) -> None:
        """Set the note's key."""
        self._store.set(f"board/{name}", text)

    def get(self, name: str) -> str:
        """Read the note's key. Raises RuntimeError if the store is gone."""
        return bytes(self._store.get(f"board/{name}")).decode()

    def has(self, name: str) -> bool:
        """True if the note's key exists."""
        return bool(self._store.check([f"board/{name}"]))


def marker(what: str, mode: ModeSpec) -> str:
    """Return the name of a note on a mode, whose text need not be a file's name."""
    return f"{what}-{hashlib.sha256(mode.text.encode()).hexdigest()}"


def put_everywhere(board: KeyValueStore, name: str, rank: int, ranks: int) -> bool:
    """Put this rank's note of that name. True if every rank puts its own within ALIKE_S.

    It is for an error that ranks raise alike: while one rank waits here, others may be in a collective of the mode.
    """
    board.put(f"{name}-{rank}", "")
    until_s = time.monotonic() + ALIKE_S
    while not all(board.has(f"{name}-{one}") for one in range(ranks)):
        if time.monotonic() > until_s:
            return False
        time.sleep(0.05)
    return True


def meet(board: KeyValueStore, name: str, job: int, jobs: int) -> None:
    """Wait until every job has put a note of this name. A rank sleeps here while the other set of ranks computes."""
    board.put(f"{name}-job{job}", "")
    while not all(board.has(f"{name}-job{one}") for one in range(jobs)):
        time.sleep(MEETING_S)
