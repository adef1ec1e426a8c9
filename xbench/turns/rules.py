"""Rules for turns on one device, without processes, sockets or clocks.

Source: CrossoverScheduler (arXiv 2103.07974). Jobs share a device. A job holds it for one *turn* (the optimizer of its
last step, forward, backward), and its gradients are communicated during the turns of the others.

Order. A block of steps has a *pattern*, such as (0, 1) or (0, 0, 1): the jobs in the order in which they take the
device, cyclically. The order is strict: if job 0 is next and has not asked yet, because its gradients are still in
flight, the others wait. A position is skipped only if its job has ended its block or has left.

Every host grants in the same order, although arbiters do not communicate. Each walks the same pattern and skips only
the positions of jobs that ended or left, from the same turn on everywhere. A job that *dies* may die on one host first.
There it is skipped at once; elsewhere it still has its positions until it leaves there too, and the others are behind
by some turns. They are never in another order, because removing a job from a cyclic pattern does not change the order
of the rest. So two jobs never wait for each other across hosts.

Meetings. A block begins when every living job has asked for the same block with the same pattern. A barrier opens when
every living job has come to it. A job that has left is not awaited.

Every method checks first and changes afterwards: a method that raises RunError has changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xbench.errors import RunError

Block = int | str
"""Name of a block: the same value in every job."""


@dataclass(frozen=True)
class Granted:
    """Reply: `job` holds the device from now on."""

    job: int


@dataclass(frozen=True)
class Meeting:
    """Reply: all living jobs have come to the meeting in which `job` waited."""

    job: int
    living: frozenset[int]


Reply = Granted | Meeting


@dataclass(frozen=True)
class _Meeting:
    """A point that all living jobs must reach: the beginning of a block, or a barrier (which has no pattern)."""

    name: Block
    pattern: tuple[int, ...] | None = None

    def __str__(self) -> str:
        if self.pattern is None:
            return f"barrier {self.name!r}"
        return f"the beginning of block {self.name!r} with pattern {self.pattern}"


class Turns:
    """The turns of `jobs` jobs (numbered from 0) on one device.

    Each method is an action of a job. It returns the replies that are now due, to this job or to others, in order. All
    jobs count as living from the start until `leave`.
    """

    def __init__(self, jobs: int, device: int = 0) -> None:
        if jobs < 1:
            raise RunError(f"turns for {jobs} jobs make no sense: at least 1 is needed")
        self.device = device
        self._jobs = jobs
        self.living: set[int] = set(range(jobs))
        self.holder: int | None = None
        self._waiting: set[int] = set()
        self._playing: set[int] = set()
        self._block: Block | None = None
        self._pattern: tuple[int, ...] = ()
        self._position = 0
        self._meeting: _Meeting | None = None
        self._arrived: set[int] = set()

    def check(self, job: int) -> None:
        """Raise RunError if there is no such job, or it has left."""
        if not 0 <= job < self._jobs:
            raise RunError(f"there is no job {job}: device {self.device} has jobs 0 to {self._jobs - 1}")
        if job not in self.living:
            raise RunError(f"job {job} has left device {self.device}")

    def begin(self, job: int, block: Block, pattern: Iterable[int]) -> list[Reply]:
        """Ask to begin `block`; all living jobs get a `Meeting` when the last of them has asked.

        A job outside the pattern takes part as a parked one: the block does not wait for it. Raises RunError if the job
        is in a block already or waits, or if the pattern is empty, names an unknown job, or differs from the others'
        pattern.
        """
        order = tuple(pattern)
        if not order:
            raise RunError(f"job {job} begins block {block!r} with an empty pattern")
        for other in order:
            if not 0 <= other < self._jobs:
                raise RunError(f"the pattern {order} names job {other}: there are jobs 0 to {self._jobs - 1}")
        return self._meet(job, _Meeting(block, order))

    def barrier(self, job: int, name: str) -> list[Reply]:
        """Wait for all living jobs outside blocks. Raises RunError if the others wait for something else."""
        return self._meet(job, _Meeting(name))

    def acquire(self, job: int) -> list[Reply]:
        """Ask for the device; `Granted` follows when this job is next and the device is free.

        Raises RunError if the job is in no block, is not in its pattern, or asks twice.
        """
        self.check(job)
        if job not in self._playing:
            raise RunError(f"job {job} asks for device {self.device} outside a block")
        if job not in self._pattern:
            raise RunError(f"job {job} asks for device {self.device}, and the pattern {self._pattern} leaves it out")
        if job == self.holder or job in self._waiting:
            raise RunError(f"job {job} asks for device {self.device} twice")
        self._waiting.add(job)
        return self._grant()

    def release(self, job: int) -> list[Reply]:
        """Return the device; the next position has its turn. Raises RunError if the job does not hold it."""
        self.check(job)
        if job != self.holder:
            raise RunError(f"job {job} releases device {self.device} without holding it")
        self.holder = None
        self._position += 1
        return self._grant()

    def end_block(self, job: int, block: Block) -> list[Reply]:
        """Take no more turns in this block: the job's positions are skipped from now on.

        Raises RunError if the job is not in that block, holds the device or waits for it.
        """
        self.check(job)
        if job not in self._playing:
            raise RunError(f"job {job} ends block {block!r} on device {self.device} and is in no block")
        if block != self._block:
            raise RunError(f"job {job} ends block {block!r} on device {self.device} and is in block {self._block!r}")
        if job == self.holder or job in self._waiting:
            state = "holding" if job == self.holder else "waiting for"
            raise RunError(f"job {job} ends block {block!r} while {state} device {self.device}")
        self._playing.discard(job)
        return self._grant()

    def leave(self, job: int) -> list[Reply]:
        """Remove the job, whatever its state: its turn passes on, and the others do not wait for it.

        It is idempotent.
        """
        if job not in self.living:
            return []
        self.living.discard(job)
        self._playing.discard(job)
        self._waiting.discard(job)
        self._arrived.discard(job)
        if job == self.holder:
            self.holder = None
        return self._grant() + self._open()

    def reason(self, job: int) -> str:
        """Reason why `job` waits, as the end of a sentence: 'held by job 0'."""
        if job in self._arrived:
            missing = sorted(self.living - self._arrived)
            jobs = f"job {missing[0]} has" if len(missing) == 1 else f"jobs {', '.join(map(str, missing))} have"
            return f"where {jobs} not come"
        if self.holder is not None:
            return f"held by job {self.holder}"
        if job in self._waiting:
            return (
                f"where job {self._pattern[self._position % len(self._pattern)]} is next and has not asked for its turn"
            )
        return "where no job waits for it"

    def _grant(self) -> list[Reply]:
        """Advance to the next position whose job still plays, and grant it the device if it waits for it."""
        if self.holder is not None or self._playing.isdisjoint(self._pattern):
            return []
        while (job := self._pattern[self._position % len(self._pattern)]) not in self._playing:
            self._position += 1
        if job not in self._waiting:
            return []
        self._waiting.discard(job)
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
        """Open the meeting when all living jobs have come to it. The beginning of a block starts the block."""
        if self._meeting is None or not self._arrived or self._arrived != self.living:
            return []
        if self._meeting.pattern is not None:
            # No job plays now: a job in a block would be living and could not have come.
            self._block, self._pattern, self._position = self._meeting.name, self._meeting.pattern, 0
            self._playing = set(self.living)
        self._meeting = None
        self._arrived = set()
        living = frozenset(self.living)
        return [Meeting(job, living) for job in sorted(living)]
