"""Tell a slow host from a slow link: exchanges between pairs of hosts, and a process's use of processors.

An all-reduce is as slow as its slowest link, and does not tell which one that is. So one rank of each host exchanges
messages with one other host after the other. Pairs of a round share no host, and run at once. Each pair meets for a
message of one element before each exchange. Both directions of the link are in use, as in a ring. The receive is posted
before the send (`schedules.dear` says why).

The first exchange of each pair sets up what a connection needs, and does not count.

A thread that is ready but does not run waits for a processor that does other work, or works for another machine. Linux
counts both for each thread (`/proc/self/task/TID/schedstat`, in ns). Where it does not, nothing is known, and all
shares are 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from xbench.profilers.clock import Clock

REPETITIONS = 16
"""Counted exchanges of a pair. The test of one pair among hundreds needs so many."""

MAX_ROUNDS = 8
"""Most rounds, so that many hosts do not take long: each host then exchanges with so many others."""

EXCHANGE_S = 0.02
"""Intended time of an exchange [s]: long enough that the rate of the link decides."""

MIN_BYTES, MAX_BYTES = 64 * 1024, 16 * 1024**2
ELEMENT_BYTES = 4


class PairTimes(NamedTuple):
    """Exchanges of this rank's host with another host: their times [s], and the processors used or waited for."""

    other: int
    times_s: list[float]
    busy: float


def rounds(hosts: int) -> list[list[tuple[int, int]]]:
    """Return pairs of hosts by round: all pairs, each once, and in a round each host at most once.

    The circle method: one host stays, and the others rotate. At most MAX_ROUNDS rounds.
    """
    ring: list[int | None] = [*range(hosts), *([None] if hosts % 2 else [])]
    found = []
    for _ in range(min(MAX_ROUNDS, len(ring) - 1)):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return found


def exchange_bytes(seconds_per_byte: float, grad_bytes: int) -> int:
    """Return the bytes of an exchange that takes about EXCHANGE_S at that cost of an all-reduce, or fewer."""
    wanted = EXCHANGE_S / seconds_per_byte if seconds_per_byte > 0 else MAX_BYTES
    most = min(MAX_BYTES, max(MIN_BYTES, grad_bytes))
    return round(min(max(wanted, MIN_BYTES), most)) // ELEMENT_BYTES * ELEMENT_BYTES


def measure_exchanges(
    leaders: Sequence[int],
    nbytes: int,
    device: torch.device,
    clock: Clock,
    note: Callable[[str], object] = lambda _: None,
) -> list[PairTimes]:
    """Exchange `nbytes` in each direction between each pair of hosts. `leaders`: the rank that acts for each host.

    Every rank of the default process group calls it, with the same arguments. Returns this rank's own times, in the
    order of the rounds; nothing on ranks that do not act for a host.
    """
    rank = dist.get_rank()
    if rank not in leaders:
        return []
    own = leaders.index(rank)
    buffers = [torch.zeros(nbytes // ELEMENT_BYTES, device=device) for _ in range(2)]
    tokens = [torch.zeros(1, device=device) for _ in range(2)]
    found = []
    for pairs in rounds(len(leaders)):
        other = next((a + b - own for a, b in pairs if own in (a, b)), None)
        if other is None:
            continue
        note(f"exchanging {nbytes} bytes with host {other}")
        marks = []
        _exchange(leaders[other], *buffers)
        watch = ProcessorWatch()
        for _ in range(REPETITIONS):
            _exchange(leaders[other], *tokens)
            begin = clock.mark()
            _exchange(leaders[other], *buffers)
            marks.append((begin, clock.mark()))
        clock.flush()
        busy = watch.use().wanted if device.type == "cpu" else 0.0
        found.append(PairTimes(other, [clock.elapsed_s(*pair) for pair in marks], busy))
        clock.reset()
    return found


def _exchange(peer: int, send: torch.Tensor, receive: torch.Tensor) -> None:
    """Send one tensor to a rank while another one is received from it."""
    operations = [dist.P2POp(dist.irecv, receive, peer), dist.P2POp(dist.isend, send, peer)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


TASKS = Path("/proc/self/task")


class ThreadTimes(NamedTuple):
    """Time in which a thread ran, and in which it waited for a processor [s]."""

    ran_s: float
    waited_s: float


class ProcessorUse(NamedTuple):
    """Use of processors over a time, by the threads that were there from its start to its end."""

    waited_share: float
    """Share of the time in which one thread waited for a processor: that which waited longest."""
    wanted: float
    """Number of processors, on average, that the threads used or waited for."""


class ProcessorWatch:
    """Counts from its construction on."""

    def __init__(self, tasks: Path = TASKS) -> None:
        self._tasks = tasks
        self._begun_s, self._begun = time.monotonic(), read(tasks)

    def use(self) -> ProcessorUse:
        """Return the use since the construction."""
        took_s = time.monotonic() - self._begun_s
        return between(self._begun, read(self._tasks), took_s)


def read(tasks: Path = TASKS) -> dict[str, ThreadTimes]:
    """Return what the kernel has counted, by thread; nothing where it does not count."""
    found: dict[str, ThreadTimes] = {}
    with suppress(OSError):
        for task in tasks.iterdir():
            with suppress(OSError, ValueError):  # the thread has ended
                ran_ns, waited_ns, *_ = (task / "schedstat").read_text(encoding="ascii").split()
                found[task.name] = ThreadTimes(int(ran_ns) * 1e-9, int(waited_ns) * 1e-9)
    return found


def between(before: Mapping[str, ThreadTimes], after: Mapping[str, ThreadTimes], took_s: float) -> ProcessorUse:
    """Return the use between two readings that lie `took_s` [s] apart."""
    both = [(before[name], now) for name, now in after.items() if name in before]
    if not both or took_s <= 0:
        return ProcessorUse(0.0, 0.0)
    waited_s = [now.waited_s - then.waited_s for then, now in both]
    ran_s = [now.ran_s - then.ran_s for then, now in both]
    return ProcessorUse(max(waited_s) / took_s, (sum(waited_s) + sum(ran_s)) / took_s)
