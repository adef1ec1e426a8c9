"""Hosts files of namespaces, in which the machine's own name has the address of that host.

Horovod (0.28.1) finds the device of its process sets by the address of the machine's name, whatever interface it is
given. Every namespace has the machine's /etc/hosts, where that address is often loopback. `ip netns exec` mounts
/etc/netns/NAME/hosts over /etc/hosts for the command that it runs. In a user namespace /etc belongs to another user,
and the command mounts its file itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from pathlib import Path

from xbench.errors import FabricError
from xbench.fabrics import links

FOLDER = Path("/etc/netns")
SPARE = Path("/run")
"""Folder of files that cannot be in FOLDER. In a user namespace it is an empty folder of that namespace."""

_MOUNT = 'mount --bind "$0" /etc/hosts && exec "$@"'


def hosts_file(address: str, name: str, machine: str) -> str:
    """/etc/hosts of a host: the machine's own lines without its name, and the name at this host's address."""
    lines = []
    for line in machine.splitlines():
        words = line.partition("#")[0].split()
        others = [word for word in words[1:] if word != name]
        if others:
            lines.append(" ".join([words[0], *others]))
    return "\n".join([*lines, f"{address} {name}", ""])


def give(space: str, address: str, folder: Path = FOLDER, spare: Path = SPARE) -> tuple[str, ...]:
    """Give the namespace a hosts file; returns the prefix of commands in it. Raises FabricError."""
    try:
        machine = Path("/etc/hosts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()  # nothing to mount over
    text = hosts_file(address, socket.gethostname(), machine)
    try:
        space_folder = folder / space
        space_folder.mkdir(parents=True, exist_ok=True)
        (space_folder / "hosts").write_text(text, encoding="utf-8")
        return ()
    except OSError:
        pass
    spare_file = spare / f"{space}.hosts"
    try:
        spare_file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FabricError(f"{space} can have no hosts file: {error.strerror}") from None
    return (shutil.which("sh") or "/bin/sh", "-c", _MOUNT, str(spare_file))


def take(space: str, folder: Path = FOLDER, spare: Path = SPARE) -> None:
    """Remove the namespace's hosts file, if there is one, and the folder of all such files when it is empty."""
    shutil.rmtree(folder / space, ignore_errors=True)
    with contextlib.suppress(OSError):
        (spare / f"{space}.hosts").unlink()
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def left(folder: Path = FOLDER) -> list[str]:
    """Namespaces of xbench, existing or not, that have a hosts file."""
    try:
        return sorted(entry.name for entry in folder.iterdir() if links.NAMESPACE.fullmatch(entry.name))
    except OSError:
        return []
