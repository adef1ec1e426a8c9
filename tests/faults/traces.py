"""Processes and things that the runs of one case have left on the machine, told from those of runs beside it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from pathlib import Path

from xbench.fabrics import links

MARK = "XBENCH_FAULTS_MARK"
"""The environment variable by which every process of a case is found again."""

OWNERS = Path("/run/xbench")
POLL_S = 0.1


class Traces:
    """Namespaces, owners and hosts files of a case's runs, its temporary folder, unfinished files of its output.

    A run that makes namespaces writes its id and its process down in OWNERS. Inside the context a thread notes the ids
    of processes that carry the case's mark, for this file may be gone while the rest is left.
    """

    def __init__(self, mark: str, temporary: Path, output: Path) -> None:
        self.ids: set[str] = set()
        self._mark, self._temporary, self._output = mark, temporary, output
        self._judged = {path.stem for path in OWNERS.glob("*.json")}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._shared = set(_shared())
        self.pids: set[int] = set()
        """Processes that the case started itself: they are known even when they are dead."""

    def __enter__(self) -> Traces:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def left(self) -> tuple[str, ...]:
        """Things of the case that are there now."""
        things = [f"namespace {name}" for name in namespaces() if self._is_ours(name)]
        for folder in (OWNERS, Path("/etc/netns")):
            things += [str(path) for path in _entries(folder) if self._is_ours(path.name)]
        things += [str(path) for path in _shared() if path not in self._shared]
        things += [str(path) for path in _entries(self._temporary) if not _is_harmless(path)]
        things += [str(path) for path in self._output.rglob(".*.part")]
        return tuple(sorted(things))

    def _is_ours(self, name: str) -> bool:
        return name.removeprefix("xb").partition("-")[0].removesuffix(".json") in self.ids

    def _watch(self) -> None:
        while not self._ended.wait(POLL_S):
            self._look()

    def _look(self) -> None:
        for path in OWNERS.glob("*.json"):
            if path.stem in self._judged:
                continue
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                pid = int(json.loads(path.read_text())["pid"])
                self._judged.add(path.stem)
                if pid in self.pids or _carries(pid, self._mark):
                    self.ids.add(path.stem)


def namespaces() -> list[str]:
    """The network namespaces that have names."""
    if links.tool("ip") is None:
        return []
    listed = subprocess.run([links.tool("ip") or "ip", "netns", "list"], capture_output=True, text=True).stdout
    return [line.split()[0] for line in listed.splitlines()]


def marked(mark: str) -> dict[int, str]:
    """Living processes of a case: pid to command line."""
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            pid = int(folder.name)
            if pid == os.getpid() or not _carries(pid, mark):
                continue
            if (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX":
                found[pid] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    return found


def tidy(left: tuple[str, ...]) -> None:
    """Take namespaces, owners and hosts files away, so that what a broken case left is not held against the next."""
    for thing in left:
        if thing.startswith("namespace xb"):
            subprocess.run(["ip", "netns", "delete", thing.split()[1]], capture_output=True)
        elif thing.startswith((f"{OWNERS}/", "/etc/netns/xb")):
            path = Path(thing)
            for inner in [*_entries(path), path] if path.is_dir() else [path]:
                with contextlib.suppress(OSError):
                    inner.rmdir() if inner.is_dir() else inner.unlink()


def _carries(pid: int, mark: str) -> bool:
    try:
        return f"{MARK}={mark}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _shared() -> list[Path]:
    """Shared memory, without the semaphores of Python's multiprocessing, which are never ours."""
    return [path for path in _entries(Path("/dev/shm")) if not path.name.startswith("sem.mp-")]


def _is_harmless(path: Path) -> bool:
    """torch's own cache, and the empty folder in which runs of users other than root write themselves down."""
    return path.name.startswith("torchinductor_") or (
        path.name.startswith("xbench-") and path.is_dir() and not any(path.iterdir())
    )
