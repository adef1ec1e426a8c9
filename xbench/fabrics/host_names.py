"""What a machine's own name means inside one of our namespaces: that host's address, for programs that look it up.

Horovod finds the device of its process sets by the address of the machine's name, whatever it was told of interfaces
(0.28.1), and every namespace has the machine's /etc/hosts, where that is often loopback. `ip netns exec` mounts
/etc/netns/NAME/hosts over /etc/hosts for what it runs. In a user namespace /etc belongs to somebody else, and the
command mounts its file itself.
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
"""Where a file is kept that cannot be in FOLDER: in a user namespace an empty folder of its own."""

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
    """Give the namespace a hosts file of its own; what must stand before commands in it. Raises FabricError."""
    try:
        machine = Path("/etc/hosts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()  # nothing to mount over
    text = hosts_file(address, socket.gethostname(), machine)
    try:
        place = folder / space
        place.mkdir(parents=True, exist_ok=True)
        (place / "hosts").write_text(text, encoding="utf-8")
        return ()
    except OSError:
        pass
    kept = spare / f"{space}.hosts"
    try:
        kept.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FabricError(f"{space} can have no hosts file: {error.strerror}") from None
    return (shutil.which("sh") or "/bin/sh", "-c", _MOUNT, str(kept))


def take(space: str, folder: Path = FOLDER, spare: Path = SPARE) -> None:
    """Remove it, if there is one; the folder of all namespaces' files too, when it is empty."""
    shutil.rmtree(folder / space, ignore_errors=True)
    with contextlib.suppress(OSError):
        (spare / f"{space}.hosts").unlink()
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def left(folder: Path = FOLDER) -> list[str]:
    """Namespaces of ours, there or gone, that have a file here."""
    try:
        return sorted(entry.name for entry in folder.iterdir() if links.NAMESPACE.fullmatch(entry.name))
    except OSError:
        return []
