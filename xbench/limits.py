"""Limits that a shell sets for its processes (ulimit), and the recognition of errors that they cause.

A process that may not map a library, open a file or start a thread dies with an error of that library, which does not
name the limit. `limit_behind` names it. Standard library alone.
"""

from __future__ import annotations

import re
import resource
from contextlib import suppress
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
