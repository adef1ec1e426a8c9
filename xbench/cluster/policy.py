"""What decides: the one interface between the simulator, the live engines and every policy.

A policy is told what happens (`arrived`, `finished`), and asked after everything that happened at one instant has been
told (`decide`): it answers with the grants that change, and with nothing if all stay as they are. So a policy keeps
what it needs in whatever order it needs it, and an event costs no look at jobs that it does not concern.

    arrived(a) arrived(b) → decide(now) → {a: 4 GPUs, b: 0} → finished(a) → decide(now) → {b: 4}

A grant says how many GPUs a job holds from now on; 0 stops it. Two jobs may share GPUs: grants with the same `gang` do,
and then `rate` says how much of its speed each has left. What a change costs (a checkpoint, a stop, a start) is the
engine's matter: it charges `Cluster.restart_s` for every change of a job that ran before. Which hosts the GPUs are on
is the engine's matter too (`placement`): a policy plans with a job's speed on the fewest hosts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from xbench.cluster.jobs import Job, Speed

Placement = Literal["packed", "spread"]


def tolerance_s(now_s: float) -> float:
    """Times that differ by no more are the same instant [s]: the same sum, added up in two ways, differs by ulps."""
    return max(1e-9, 1e-12 * now_s)


def due(at_s: float, now_s: float) -> bool:
    """True if an event that is due at `at_s` happens now, or should have happened before."""
    return at_s <= now_s + tolerance_s(now_s)


@dataclass(frozen=True)
class Cluster:
    """`gpus` of one kind; `restart_s`: what it costs a job that ran to run again, or with another number of GPUs.

    `gpus_per_host`: of hosts that are alike; None: all GPUs are on one. `placement`: on which hosts jobs are.
    `start_s`: what a job's first start costs.
    """

    gpus: int
    restart_s: float = 0.0
    gpus_per_host: int | None = None
    placement: Placement = "packed"
    start_s: float = 0.0

    @property
    def hosts(self) -> int:
        """How many; with one alone there is nothing to place."""
        return 1 if self.gpus_per_host is None else self.gpus // self.gpus_per_host


class Active:
    """A job that has arrived and has not finished, as it stands. Engines write to it, policies only read."""

    __slots__ = (
        "_as_of_s", "_computed_gpu_s", "_done", "_held_gpu_s", "began_s", "gang", "gpus", "job", "number", "rate",
        "ready_s", "restarts", "speed", "truth", "version",
    )  # fmt: skip

    def __init__(self, job: Job, number: int, truth: Speed | None = None) -> None:
        self.job = job
        self.truth = truth or job.speed
        """How fast it really is, where `job.speed` is only what policies know."""
        self.number = number
        """In the order of arrival: breaks ties, so that a simulation is deterministic."""
        self.gpus = 0
        self.rate = 1.0
        self.gang: int | None = None
        self.speed = 0.0
        """Work a second while it computes, sharing included; 0 while it waits."""
        self.ready_s = 0.0
        """From when on it computes: later than now while it restarts."""
        self.began_s: float | None = None
        self.restarts = 0
        self.version = 0
        self._as_of_s = job.arrival_s
        self._done = 0.0
        self._held_gpu_s = 0.0
        self._computed_gpu_s = 0.0

    def remaining(self, now_s: float) -> float:
        """Work that is left."""
        running = self.speed * max(0.0, now_s - max(self.ready_s, self._as_of_s)) if self.gpus else 0.0
        return max(0.0, self.job.work - self._done - running)

    def attained_s(self, now_s: float) -> float:
        """GPU seconds that it has held so far."""
        return self._held_gpu_s + self.gpus * (now_s - self._as_of_s)

    def computed_s(self, now_s: float) -> float:
        """GPU seconds that it has held so far, without those in which it started or restarted."""
        return self._computed_gpu_s + self.gpus * max(0.0, now_s - max(self.ready_s, self._as_of_s))

    def finish_s(self, now_s: float) -> float:
        """When it will be done if nothing changes. Only of a job that holds GPUs."""
        return max(now_s, self.ready_s) + self.remaining(now_s) / self.speed

    def hold(self, now_s: float, gpus: int, rate: float, gang: int | None, ready_s: float) -> None:
        """From now on it holds so many GPUs. For engines."""
        remaining = self.remaining(now_s)
        self._held_gpu_s = self.attained_s(now_s)
        self._computed_gpu_s = self.computed_s(now_s)
        self._done = self.job.work - remaining
        self._as_of_s = now_s
        self.gpus, self.rate, self.gang, self.ready_s = gpus, rate, gang, ready_s
        self.speed = rate * self.truth(gpus) if gpus else 0.0
        self.version += 1

    def learn(self, now_s: float, done: float, speed: float, ready_s: float) -> None:
        """So much of its work is done, and so fast it goes on from `ready_s`. For engines that run real jobs."""
        self._held_gpu_s = self.attained_s(now_s)
        self.ready_s = ready_s  # it may have been ready earlier, or later, than was thought
        self._computed_gpu_s = self.computed_s(now_s)
        self._done = done
        self._as_of_s = now_s
        self.speed = speed
        self.version += 1

    def pace(self, now_s: float, speed: float) -> None:
        """From now on its GPUs do so much work a second, sharing not counted. For engines that place jobs on hosts."""
        self.hold(now_s, self.gpus, self.rate, self.gang, self.ready_s)
        self.speed = self.rate * speed


class Grant(NamedTuple):
    """What a job holds from now on. `rate`: its share of its own speed; `gang`: whom it shares GPUs with."""

    gpus: int
    rate: float = 1.0
    gang: int | None = None


Change = tuple[Active, Grant]


class Policy(ABC):
    """One way to share a cluster. An object serves one simulation: `begin` comes first, and once."""

    elastic: ClassVar[bool] = False
    """Whether it decides how many GPUs a job gets, from its `least` on; if not, a job gets what it asked for."""

    cluster: Cluster

    def begin(self, cluster: Cluster, jobs: Iterable[Job]) -> None:
        """Look at what is to come, to refuse what this policy cannot serve: raises SpecError. It learns nothing of it.

        (A policy that is meant to know durations beforehand reads them from each job when it arrives.)
        """
        self.cluster = cluster

    @abstractmethod
    def arrived(self, job: Active, now_s: float) -> None:
        """A job is here, and holds nothing."""

    @abstractmethod
    def finished(self, job: Active, now_s: float) -> None:
        """A job is done, or was given up; what it held is free. A real one may end after it was told to stop."""

    @abstractmethod
    def decide(self, now_s: float) -> Iterable[Change]:
        """The grants that change now. What they add up to must fit the cluster.

        A job that has to leave its GPUs for as many others has two changes, in this order: it is stopped, and granted.
        """

    def look_again_s(self, now_s: float) -> float | None:
        """When to be asked again even if nothing happens before; None: never. Later than now."""
        return None
