"""Exchanges between pairs of hosts, to compare their links.

An all-reduce is as slow as its slowest link, and does not tell which one that is. So one rank of each host exchanges
messages with one other host after the other. Pairs of a round share no host, and run at once. Each pair meets for a
message of one element before each exchange. Both directions of the link are in use, as in a ring. The receive is posted
before the send (`schedules.dear` says why).

The first exchange of each pair sets up what a connection needs, and does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from xbench.profilers.clock import Clock
from xbench.profilers.processor import ProcessorWatch

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
