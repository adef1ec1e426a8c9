"""Leftovers of killed runs, and how to tell them from a live run's namespaces, temporary folders and partial files.

Before a fabric makes its first namespace it writes `/run/xbench/<run id>.json` with its process id and that process's
start time (the id alone may belong to a new process). A namespace with an xbench name whose owner is gone, or has no
such file, is a leftover. Folders and files name their maker themselves: see `xbench.scratch`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from xbench import scratch
from xbench.errors import FabricError
from xbench.fabrics import links

KILL_WAIT_S = 3.0


def owner_folder() -> Path:
    """Folder of the owner files: /run/xbench, or one in the temporary folder if /run is not writable.

    Raises FabricError if the second belongs to another user, or others can write to it: a writer there decides which
    namespaces count as leftovers.
    """
    folder = Path("/run/xbench")
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o755, exist_ok=True)
    if os.access(folder, os.W_OK):
        return folder
    folder = Path(tempfile.gettempdir()) / f"xbench-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise FabricError(
            f"{str(folder)!r} is not a folder that only this user can write to",
            hint="remove it, or set TMPDIR to a folder of your own",
        )
    return folder


def started_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot, or None if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def claim(run_id: str, folder: Path | None = None) -> Path:
    """Record that this process owns the run. Raises OSError."""
    path = (folder or owner_folder()) / f"{run_id}.json"
    path.write_text(json.dumps({"run_id": run_id, "pid": os.getpid(), "started_ticks": started_ticks(os.getpid())}))
    return path


def owner_lives(run_id: str, folder: Path | None = None) -> bool:
    """True if the process that claimed the run still exists."""
    try:
        owner = json.loads(((folder or owner_folder()) / f"{run_id}.json").read_text())
        return started_ticks(int(owner["pid"])) == int(owner["started_ticks"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


@dataclass
class Cleaned:
    """Result of `clean`: namespaces removed, processes killed in them, namespaces kept because their run is alive.

    `left` are those that only root may remove. `files` are the folders and files removed.
    """

    removed: list[str] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)


def clean(everything: bool = False, folder: Path | None = None) -> Cleaned:
    """Remove namespaces whose owner is gone, and kill their processes; with `everything`, those of live runs too.

    Only root makes namespaces that a clean can see, and they are left to root. An ordinary user's are in a user
    namespace, and end with their run. Raises FabricError if ip(8) refuses.
    """
    folder = folder or owner_folder()
    cleaned = Cleaned()
    names = links.list_namespaces() if links.tool("ip") is not None else []
    if os.geteuid() != 0:
        return Cleaned(left=names)
    for name in names:
        if not everything and owner_lives(_run_of(name), folder):
            cleaned.kept.append(name)
            continue
        cleaned.killed += remove(name)
        cleaned.removed.append(name)
    for name in links.hosts_files():
        if name not in cleaned.kept and not owner_lives(_run_of(name), folder):
            links.remove_hosts_file(name)
            cleaned.files.append(links.HOSTS_FILES / name)
    kept = {_run_of(name) for name in cleaned.kept}
    for path in folder.glob("??????.json"):
        if path.stem not in kept and not owner_lives(path.stem, folder):
            path.unlink(missing_ok=True)
    return cleaned


def _run_of(namespace: str) -> str:
    return namespace.removeprefix("xb").partition("-")[0]


def clean_files(output: Path) -> list[Path]:
    """Remove temporary folders, and partial files there and below `output`, whose makers are gone; return them."""
    return scratch.remove_left([*scratch.places(), *(Path(root) for root, _, _ in os.walk(output))])


def remove(name: str) -> list[int]:
    """Kill every process in a namespace, then delete it; return the ids of the killed processes. Raises FabricError."""
    killed: set[int] = set()
    deadline = time.monotonic() + KILL_WAIT_S
    while (pids := links.namespace_pids(name)) and time.monotonic() < deadline:
        for pid in {*pids} - {os.getpid()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(0.02)
    try:
        links.remove_namespace(name)
    except FabricError:
        if os.path.exists(f"/run/netns/{name}"):  # else another `xbench clean` was faster
            raise
    links.remove_hosts_file(name)
    return sorted(killed)
