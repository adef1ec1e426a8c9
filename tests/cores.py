"""One thread and one core for what computes beside another test.

Two threads that share a small matrix wait for each other, and much longer where another test has their cores: a step of
a small model then takes up to nine times as much of the processors' time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def one_thread() -> None:
    """Let this process and what it starts compute with one thread, before torch and numpy are imported.

    Ranks of a run set their own number: one for each core of theirs.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@contextmanager
def one_core() -> Iterator[None]:
    """Context in which this process, and what it starts, has one core: another one in each worker of pytest-xdist."""
    allowed = os.sched_getaffinity(0)
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    number = int(worker) if worker.isdecimal() else 0
    os.sched_setaffinity(0, {sorted(allowed)[number % len(allowed)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
