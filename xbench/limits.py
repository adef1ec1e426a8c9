"""Limits of processes: those of a shell (ulimit), with the errors that they cause, and the cores of control groups.

A process that may not map a library, open a file or start a thread dies with an error of that library, which does not
name the limit. `limit_behind` names it. Standard library alone.
"""

from __future__ import annotations

import itertools
import os
import re
import resource
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from xbench.errors import UsageError

MIN_FILES = 64
"""Least number of open files for a run: a rank has about forty."""

LAST_LINE_CHARACTERS = 300


class _Limit(NamedTuple):
    number: int
    flag: str
    """Option of ulimit that sets the limit."""
    unit: int
    """Size of the unit in which ulimit counts."""
    bounds: str
    pattern: str


_LIMITS = (
    _Limit(resource.RLIMIT_AS, "-v", 1024, "a process's memory",
           r"failed to map segment|cannot allocate memory|can't allocate memory|memory allocation|MemoryError|"
           r"bad_alloc|unable to mmap|pthread_create|can't start new thread"),
    _Limit(resource.RLIMIT_NOFILE, "-n", 1, "a process's open files", r"too many open files|failed to init uv loop"),
    _Limit(resource.RLIMIT_NPROC, "-u", 1, "a user's processes and threads",
           r"BlockingIOError|fork: .*unavailable|can't start new thread|pthread_create|thread creation failed"),
    _Limit(resource.RLIMIT_FSIZE, "-f", 1024, "a file's size", r"file too large|SIGXFSZ|file size limit|no space left"),
    _Limit(resource.RLIMIT_CPU, "-t", 1, "a process's CPU time", r"SIGXCPU|cpu time limit"),
)  # fmt: skip


def limit_behind(text: str) -> str | None:
    """A hint that names the limit of this shell to which an error's words point; None without such a limit."""
    for limit in _LIMITS:
        soft_limit, _ = resource.getrlimit(limit.number)
        if soft_limit != resource.RLIM_INFINITY and re.search(limit.pattern, text, re.IGNORECASE):
            return f"this shell limits {limit.bounds}: raise ulimit {limit.flag}, which is {soft_limit // limit.unit}"
    return None


def require_files(least: int = MIN_FILES) -> None:
    """Let this process and its children open as many files as a run needs. Raises UsageError if that is not allowed."""
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit == resource.RLIM_INFINITY or soft_limit >= least:
        return
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, hard_limit))
        return
    raise UsageError(f"a process may open {soft_limit} files here, and a run needs {least}", hint=f"ulimit -n {least}")


def last_line(log: str) -> str:
    """The last line of a process's output, without control characters and shortened; empty without output.

    A hint of xbench, which follows its error, does not count.
    """
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith("  hint: ")]
    line = "".join(letter if letter.isprintable() else " " for letter in lines[-1]) if lines else ""
    return " ".join(line.split())[:LAST_LINE_CHARACTERS]


def usable_cores() -> int:
    """Number of cores that this process may use, which containers and taskset limit."""
    return min(allowed_cores(), cpu_quota() or allowed_cores())


def allowed_cores() -> int:
    """Number of cores that this process may run on, at any share of their time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(proc: Path = Path("/proc/self")) -> int | None:
    """Whole cores of time that the tightest of our control groups allows (v2 or v1), at least 1; None without a limit.

    A group that has used its time of a period is stopped until the next one, on all cores.
    """
    found = []
    for folder, names in itertools.product(
        control_groups("cpu", proc), (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    ):
        try:
            quota, period = " ".join((folder / name).read_text() for name in names).split()
            if quota not in ("max", "-1"):
                found.append(max(1, int(quota) // int(period)))
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return min(found, default=None)


def control_groups(controller: str, proc: Path = Path("/proc/self")) -> list[Path]:
    """Return the folders of our control groups that may limit a controller (`cpu`, `memory`), and of all their parents.

    A service, a user's slice and a container inside another one each have a group, and every limit on the way to the
    root holds. `cgroup` in `proc` names the groups: `0::PATH` in v2, `N:CONTROLLERS:PATH` in v1. `mountinfo` says where
    each hierarchy is mounted, and which of its groups is the top there. Parents above that cannot be seen.
    """
    try:
        groups = (proc / "cgroup").read_text().splitlines()
        mounts = (proc / "mountinfo").read_text().splitlines()
    except OSError:
        return []
    ours = {names: path for _, names, path in (line.split(":", 2) for line in groups if line.count(":") >= 2)}
    found = []
    for line in mounts:
        before, _, after = line.partition(" - ")
        kind, options = after.split(" ")[0], after.split(" ")[-1].split(",")
        if kind == "cgroup" and controller in options:
            path = next((path for names, path in ours.items() if controller in names.split(",")), None)
        else:
            path = ours.get("") if kind == "cgroup2" else None
        if path is None:
            continue
        top, place = before.split(" ")[3:5]
        below = path.removeprefix(top.rstrip("/")) if f"{path}/".startswith(f"{top.rstrip('/')}/") else "/"
        mounted = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), place))
        inner = [part for part in below.split("/") if part]
        if ".." not in inner:
            found += [mounted.joinpath(*inner[:depth]) for depth in range(len(inner), -1, -1)]
    return list(dict.fromkeys(found))
