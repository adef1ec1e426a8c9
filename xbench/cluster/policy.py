"""The interface between policies and the engines that run them: the simulator and the live engines.

An engine reports events to a policy (`arrived`, `finished`). After all events of one instant it calls `decide`, which
returns the grants that change. An empty answer keeps all grants. So a policy keeps its own data structures, and an
event costs no look at unrelated jobs.

    arrived(a) arrived(b) → decide(now) → {a: 4 GPUs, b: 0} → finished(a) → decide(now) → {b: 4}

A grant is the number of GPUs that a job holds from now on; 0 stops the job. Jobs whose grants have the same `gang`
share GPUs, and `rate` is the share of its speed that each keeps. The engine charges the cost of a change (a checkpoint,
a stop, a start): `Cluster.restart_s` for every change of a job that ran before. The engine also places GPUs on hosts
(`placement`); a policy plans with a job's speed on the fewest hosts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from xbench.cluster.jobs import Job

Placement = Literal["packed", "spread"]


def tolerance_s(now_s: float) -> float:
    """Largest difference [s] between equal instants. The same sum, added in another order, differs by ulps."""
    return max(1e-9, 1e-12 * now_s)


def due(at_s: float, now_s: float) -> bool:
    """True if an event that is due at `at_s` happens now, or should have happened before."""
    return at_s <= now_s + tolerance_s(now_s)


@dataclass(frozen=True)
class Cluster:
    """A cluster of `gpus` equal GPUs. `restart_s`: cost [s] of a restart or of a change of size.

    `gpus_per_host`: size of the hosts, all alike; None: one host has all GPUs. `placement`: rule that chooses hosts.
    `start_s`: cost [s] of a job's first start.
    """

    gpus: int
    restart_s: float = 0.0
    gpus_per_host: int | None = None
    placement: Placement = "packed"
    start_s: float = 0.0

    @property
    def hosts(self) -> int:
        """Number of hosts. A single host needs no placement."""
        return 1 if self.gpus_per_host is None else self.gpus // self.gpus_per_host


class Active:
    """State of a job that has arrived and has not finished. Engines write to it, policies only read."""

    def __init__(self, job: Job, number: int, truth: Callable[[int], float] | None = None) -> None:
        self.job = job
        self.truth = truth or job.speed
        """The real speed, if `job.speed` is only the speed that policies know."""
        self.number = number
        """Number in the order of arrival. It breaks ties, so that a simulation is deterministic."""
        self.gpus = 0
        self.rate = 1.0
        self.gang: int | None = None
        self.speed = 0.0
        """Work per second while it computes, sharing included; 0 while it waits."""
        self.ready_s = 0.0
        """Time [s] from which it computes: later than now during a restart."""
        self.began_s: float | None = None
        self.restarts = 0
        self.version = 0
        self._as_of_s = job.arrival_s
        self._done = 0.0
        self._held_gpu_s = 0.0
        self._computed_gpu_s = 0.0

    def remaining(self, now_s: float) -> float:
        """Remaining work."""
        running = self.speed * max(0.0, now_s - max(self.ready_s, self._as_of_s)) if self.gpus else 0.0
        return max(0.0, self.job.work - self._done - running)

    def attained_s(self, now_s: float) -> float:
        """GPU seconds held so far."""
        return self._held_gpu_s + self.gpus * (now_s - self._as_of_s)

    def computed_s(self, now_s: float) -> float:
        """GPU seconds held so far, without those of starts and restarts."""
        return self._computed_gpu_s + self.gpus * max(0.0, now_s - max(self.ready_s, self._as_of_s))

    def finish_s(self, now_s: float) -> float:
        """Time [s] of its end if nothing changes. The job must hold GPUs."""
        return max(now_s, self.ready_s) + self.remaining(now_s) / self.speed

    def hold(self, now_s: float, gpus: int, rate: float, gang: int | None, ready_s: float) -> None:
        """Hold `gpus` GPUs from now on. Engines alone call this."""
        remaining = self.remaining(now_s)
        self._held_gpu_s = self.attained_s(now_s)
        self._computed_gpu_s = self.computed_s(now_s)
        self._done = self.job.work - remaining
        self._as_of_s = now_s
        self.gpus, self.rate, self.gang, self.ready_s = gpus, rate, gang, ready_s
        self.speed = rate * self.truth(gpus) if gpus else 0.0
        self.version += 1

    def learn(self, now_s: float, done: float, speed: float, ready_s: float) -> None:
        """Record work done, and the speed from `ready_s` on. Engines that run real jobs call this."""
        self._held_gpu_s = self.attained_s(now_s)
        self.ready_s = ready_s  # it may have been ready earlier or later than expected
        self._computed_gpu_s = self.computed_s(now_s)
        self._done = done
        self._as_of_s = now_s
        self.speed = speed
        self.version += 1

    def pace(self, now_s: float, speed: float) -> None:
        """Set the work per second of its GPUs, sharing not counted. Engines that place jobs on hosts call this."""
        self.hold(now_s, self.gpus, self.rate, self.gang, self.ready_s)
        self.speed = self.rate * speed


class Grant(NamedTuple):
    """Grant of a job from now on. `rate`: its share of its own speed; `gang`: the group that shares its GPUs."""

    gpus: int
    rate: float = 1.0
    gang: int | None = None


Change = tuple[Active, Grant]


class Policy(ABC):
    """One way to share a cluster. An object serves one simulation and begins with one call of `begin`."""

    elastic: ClassVar[bool] = False
    """True if it chooses the number of GPUs, from a job's `least` on. False: a job gets the number that it requests."""

    cluster: Cluster

    def begin(self, cluster: Cluster, jobs: Sequence[Job]) -> None:
        """Check the coming jobs. Raises SpecError for a job that this policy cannot serve. It must not learn from them.

        (A policy that is meant to know durations beforehand reads them from each job when it arrives.)
        """
        self.cluster = cluster

    @abstractmethod
    def arrived(self, job: Active, now_s: float) -> None:
        """A job has arrived. It holds nothing."""

    @abstractmethod
    def finished(self, job: Active, now_s: float) -> None:
        """A job has ended or was abandoned; its GPUs are free. A real job may end after it was told to stop."""

    @abstractmethod
    def decide(self, now_s: float) -> Iterable[Change]:
        """The grants that change now. All grants together must fit the cluster.

        A job that changes its GPUs for as many others has two changes, in this order: a stop and a grant.
        """

    def look_again_s(self, now_s: float) -> float | None:
        """Time [s] of the next call of `decide` without an event, later than now; None: no such call."""
        return None
