"""Who owns which namespaces, so that what a killed run left behind can be told from what a live run needs.

Before a fabric makes its first namespace it writes `/run/xbench/<run id>.json` with its process id and that process's
start time (a process id alone may have been given to somebody else since). A namespace named as ours whose owner is
gone, or was never written down, is a leftover.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from xbench.fabrics import host_names, links

KILL_WAIT_S = 3.0


def owner_folder() -> Path:
    """Where owners are written down: /run/xbench, or a folder in the temporary one where /run is not ours."""
    folder = Path("/run/xbench")
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o755, exist_ok=True)
    if os.access(folder, os.W_OK):
        return folder
    folder = Path(tempfile.gettempdir()) / f"xbench-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def started_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot, or None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def claim(run_id: str, folder: Path | None = None) -> Path:
    """Write down that this process owns the run. Raises OSError."""
    path = (folder or owner_folder()) / f"{run_id}.json"
    path.write_text(json.dumps({"run_id": run_id, "pid": os.getpid(), "started_ticks": started_ticks(os.getpid())}))
    return path


def owner_lives(run_id: str, folder: Path | None = None) -> bool:
    """Whether the process that claimed the run still exists."""
    try:
        owner = json.loads(((folder or owner_folder()) / f"{run_id}.json").read_text())
        return started_ticks(int(owner["pid"])) == int(owner["started_ticks"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


@dataclass
class Cleaned:
    """What `clean` did: namespaces removed, processes killed in them, namespaces kept because their run is alive."""

    removed: list[str] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


def clean(everything: bool = False, folder: Path | None = None) -> Cleaned:
    """Remove namespaces whose owner is gone, and kill what runs in them; with `everything`, those of live runs too.

    Raises FabricError when ip(8) is missing or refuses.
    """
    folder = folder or owner_folder()
    done = Cleaned()
    for name in links.list_namespaces():
        match = links.NAMESPACE.fullmatch(name)
        assert match is not None
        if not everything and owner_lives(match["run"], folder):
            done.kept.append(name)
            continue
        done.killed += remove(name)
        done.removed.append(name)
    kept = {name.partition("-")[0] for name in done.kept}
    for name in host_names.left():
        match = links.NAMESPACE.fullmatch(name)
        if name not in done.kept and match is not None and not owner_lives(match["run"], folder):
            host_names.take(name)
    for path in folder.glob("??????.json"):
        if f"xb{path.stem}" not in kept and not owner_lives(path.stem, folder):
            path.unlink(missing_ok=True)
    return done


def remove(name: str, sleep: Callable[[float], None] = time.sleep) -> list[int]:
    """Kill every process in a namespace, then delete it; return whom it killed. Raises FabricError."""
    killed: set[int] = set()
    deadline = time.monotonic() + KILL_WAIT_S
    while (pids := links.namespace_pids(name)) and time.monotonic() < deadline:
        for pid in pids:
            if pid == os.getpid():
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        sleep(0.02)
    links.remove_namespace(name)
    host_names.take(name)
    return sorted(killed)
