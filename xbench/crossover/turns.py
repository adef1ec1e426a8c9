"""Whose turn it is on one device: the rules, without processes, sockets or clocks.

Source: CrossoverScheduler (arXiv 2103.07974). Jobs share a device; a job holds it for one *turn* (the optimizer of its
last step, forward, backward) and its gradients travel during the turns of the others.

Order. A block of steps has a *pattern*, such as (0, 1) or (0, 0, 1): the jobs in the order in which they take the
device, again and again. The order is strict: when it is job 0's place and job 0 has not asked yet, because its
gradients are still on their way, the others wait. A place is skipped only when its job has ended its block or has left.

Why every host grants in the same order. No arbiter talks to another. Each walks the same pattern and skips nothing but
the places of jobs that ended or left. A job takes the same number of turns on every host before it ends its block, so
its places are skipped from the same turn on everywhere. A job that *dies* may die on one host first: there it is
skipped at once, elsewhere it still has its places, and perhaps holds the device. Its collectives then fail on the
other hosts too, so it leaves there in its turn, and the turns that it had left are skipped. Until it has left, the
survivors' ranks on the other hosts are behind by some turns; they are never in another order, because taking a job
out of a cyclic pattern does not change the order of the rest. So two jobs never wait for each other across hosts.

Meetings. A block begins when every living job has asked for the same block with the same pattern; a barrier opens when
every living job has come to it. A job that has left is not waited for.

Every method checks first and changes afterwards: one that raises RunError has changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xbench.errors import RunError

Block = int | str
"""What names a block: the same value in every job."""


@dataclass(frozen=True)
class Granted:
    """`job` holds the device from now on."""

    job: int


@dataclass(frozen=True)
class Met:
    """All living jobs have come to the meeting that `job` waited in."""

    job: int
    living: frozenset[int]


Reply = Granted | Met


@dataclass(frozen=True)
class _Meeting:
    """What all living jobs must come to: a block's begin, or a barrier (which has no pattern)."""

    name: Block
    pattern: tuple[int, ...] | None = None

    def __str__(self) -> str:
        if self.pattern is None:
            return f"barrier {self.name!r}"
        return f"the beginning of block {self.name!r} with pattern {self.pattern}"


class Turns:
    """The turns of `jobs` jobs (numbered from 0) on one device.

    Methods are what a job does; each returns the replies that are now due, to this job or to others, in order. All
    jobs count as living from the start, also before they have been heard of, and until `leave`.
    """

    def __init__(self, jobs: int, device: int = 0) -> None:
        if jobs < 1:
            raise RunError(f"turns for {jobs} jobs make no sense: at least 1 is needed")
        self.device = device
        self._jobs = jobs
        self.living: set[int] = set(range(jobs))
        self.holder: int | None = None
        self._wanting: set[int] = set()
        self._playing: set[int] = set()
        self._block: Block | None = None
        self._pattern: tuple[int, ...] = ()
        self._place = 0
        self._meeting: _Meeting | None = None
        self._arrived: set[int] = set()

    def check(self, job: int) -> None:
        """Raises RunError when there is no such job, or it has left."""
        if not 0 <= job < self._jobs:
            raise RunError(f"there is no job {job}: device {self.device} has jobs 0 to {self._jobs - 1}")
        if job not in self.living:
            raise RunError(f"job {job} has left device {self.device}")

    def begin(self, job: int, block: Block, pattern: Iterable[int]) -> list[Reply]:
        """Ask to begin `block`; all living jobs get a `Met` when the last of them has asked.

        A job that stands nowhere in the pattern takes part as one that is parked: it is not waited for in the block.
        Raises RunError when the job is in a block already, waits for something, or when the pattern is empty, names
        an unknown job, or differs from what the others wait for.
        """
        order = tuple(pattern)
        if not order:
            raise RunError(f"job {job} begins block {block!r} with an empty pattern")
        for other in order:
            if not 0 <= other < self._jobs:
                raise RunError(f"the pattern {order} names job {other}: there are jobs 0 to {self._jobs - 1}")
        return self._meet(job, _Meeting(block, order))

    def barrier(self, job: int, name: str) -> list[Reply]:
        """Wait for all living jobs outside blocks. Raises RunError when the others wait for something else."""
        return self._meet(job, _Meeting(name))

    def acquire(self, job: int) -> list[Reply]:
        """Ask for the device; `Granted` follows when it is this job's place and the device is free.

        Raises RunError when the job is in no block, stands nowhere in its pattern, or asks twice.
        """
        self.check(job)
        if job not in self._playing:
            raise RunError(f"job {job} asks for device {self.device} outside a block")
        if job not in self._pattern:
            raise RunError(f"job {job} asks for device {self.device}, and the pattern {self._pattern} leaves it out")
        if job == self.holder or job in self._wanting:
            raise RunError(f"job {job} asks for device {self.device} twice")
        self._wanting.add(job)
        return self._grant()

    def release(self, job: int) -> list[Reply]:
        """Give the device back: the next place's turn. Raises RunError when the job does not hold it."""
        self.check(job)
        if job != self.holder:
            raise RunError(f"job {job} releases device {self.device} without holding it")
        self.holder = None
        self._place += 1
        return self._grant()

    def end_block(self, job: int, block: Block) -> list[Reply]:
        """Take no more turns in this block: the job's places are skipped from now on.

        Raises RunError when the job is not in that block, holds the device or waits for it.
        """
        self.check(job)
        if job not in self._playing:
            raise RunError(f"job {job} ends block {block!r} on device {self.device} and is in no block")
        if block != self._block:
            raise RunError(f"job {job} ends block {block!r} on device {self.device} and is in block {self._block!r}")
        if job == self.holder or job in self._wanting:
            state = "holding" if job == self.holder else "waiting for"
            raise RunError(f"job {job} ends block {block!r} while {state} device {self.device}")
        self._playing.discard(job)
        return self._grant()

    def leave(self, job: int) -> list[Reply]:
        """The job is gone, whatever it was doing: its turn passes on, and nobody waits for it. Twice is once."""
        if job not in self.living:
            return []
        self.living.discard(job)
        self._playing.discard(job)
        self._wanting.discard(job)
        self._arrived.discard(job)
        if job == self.holder:
            self.holder = None
        return self._grant() + self._open()

    def why(self, job: int) -> str:
        """What the waiting `job` waits for, as the end of a sentence: 'held by job 0'."""
        if job in self._arrived:
            missing = sorted(self.living - self._arrived)
            jobs = f"job {missing[0]} has" if len(missing) == 1 else f"jobs {', '.join(map(str, missing))} have"
            return f"where {jobs} not come"
        if self.holder is not None:
            return f"held by job {self.holder}"
        if job in self._wanting:
            return f"where job {self._pattern[self._place % len(self._pattern)]} is next and has not asked for its turn"
        return "where it is waited for by nobody"

    def _grant(self) -> list[Reply]:
        """Walk to the next place whose job still plays, and give it the device if it wants it."""
        if self.holder is not None or self._playing.isdisjoint(self._pattern):
            return []
        while (job := self._pattern[self._place % len(self._pattern)]) not in self._playing:
            self._place += 1
        if job not in self._wanting:
            return []
        self._wanting.discard(job)
        self.holder = job
        return [Granted(job)]

    def _meet(self, job: int, meeting: _Meeting) -> list[Reply]:
        self.check(job)
        if job in self._playing:
            raise RunError(f"job {job} comes to {meeting} inside block {self._block!r}: it must end that block first")
        if job in self._arrived:
            raise RunError(f"job {job} comes to {meeting} while it waits for {self._meeting}")
        if self._arrived and meeting != self._meeting:
            raise RunError(f"job {job} comes to {meeting} while job {min(self._arrived)} waits for {self._meeting}")
        self._meeting = meeting
        self._arrived.add(job)
        return self._open()

    def _open(self) -> list[Reply]:
        """Open the meeting when all living jobs have come to it; a block's begin starts the block."""
        if self._meeting is None or not self._arrived or self._arrived != self.living:
            return []
        if self._meeting.pattern is not None:
            # Nobody plays now: a job in a block would be living and could not have come.
            self._block, self._pattern, self._place = self._meeting.name, self._meeting.pattern, 0
            self._playing = set(self.living)
        self._meeting = None
        self._arrived = set()
        living = frozenset(self.living)
        return [Met(job, living) for job in sorted(living)]
