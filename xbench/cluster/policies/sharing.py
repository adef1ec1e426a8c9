"""Policies that let jobs share GPUs: an exclusive policy, the order, chooses owners, and waiting jobs are their guests.

A guest waits in the order, requests as many GPUs as some owner has, and shares that owner's: it takes no GPUs from a
job that comes before it. Owners get slower, so guests are admitted only if Σ rates grows by `gain`. The order sees a
guest as a waiting job. Orders that use remaining work update it only when a job begins or ends to share.

**Matching.** Every pair consists of an owner and a waiting job. The graph is bipartite, and `scipy` finds its matching
of largest total gain exactly, for each number of GPUs by itself. A pair stays until one of its jobs leaves. Jobs of one
*kind* have the same step times and memory; predictions are kept by kind.

**When the owner leaves** (it ends, or the order stops it), its guest needs another. A guest that the order has just
started owns the GPUs that it is on. If the order has just started another job of that size with which sharing pays, the
guest stays and that job joins it. Otherwise it moves to another owner, or is stopped; both cost a restart.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import linear_sum_assignment

from xbench.cluster.jobs import Job, first_of
from xbench.cluster.policies.fifo import Fifo, FifoBackfill
from xbench.cluster.policies.ordered import Order, Sjf, Srtf
from xbench.cluster.policy import Active, Change, Cluster, Grant, Policy
from xbench.cluster.speeds import StepTimes, forward_share, memory_bytes, step_times
from xbench.errors import SpecError, unknown
from xbench.planning.partial import MAX_LEVELS
from xbench.planning.turns import JobTimes, SpatialJob, best_pattern, pack

ORDERS: Mapping[str, Callable[[], Order]] = {
    "fifo": Fifo, "fifo-backfill": FifoBackfill, "sjf": Sjf, "srtf": Srtf,
}  # fmt: skip
KINDS = 64
"""Largest number of kinds of waiting jobs of one size that are considered at once."""

STAYING = 1e-6
"""Bonus for a guest that need not move. It decides between matchings with the same gain."""

MAX_PATTERN = 6
"""Largest number of turns in a round: up to five short steps of one job to a long one of the other."""

Kind = tuple[float, ...]
"""Memory [B], and the step times that a policy knows."""


class OrderView(Active):
    """A job as the order sees it: it holds its own GPUs or none, whatever it shares."""

    def __init__(self, real: Active) -> None:
        super().__init__(real.job, real.number)
        self.real = real

    def remaining(self, now_s: float) -> float:
        """Remaining work of the real job."""
        return self.real.remaining(now_s)


@dataclass(eq=False)
class SharedAllocation:
    """The GPUs of an owner, and the jobs on them: the owner, then its guest. `gang` identifies the allocation."""

    gang: int
    gpus: int
    members: list[Active]
    member_kinds: tuple[Kind, ...] = ()
    """Kinds of the members, ascending."""
    fresh: bool = True
    """True if its owner started at this instant: it has no GPUs yet, and any GPUs will do."""
    inherits_gang: int | None = None
    """Gang of a former owner whose GPUs a fresh allocation takes over because the guest is still there."""


class Sharing(Policy):
    """Base of sharing policies. Subclasses define kinds of jobs, and the rates at which two jobs share.

    Raises SpecError for an unknown order, for a gain that is not above zero, and in `begin` for a trace that lacks
    data.
    """

    name: str

    def __init__(self, order: str, gain: float, memory: int | None) -> None:
        if order not in ORDERS:
            raise unknown("order", order, ORDERS)
        if gain <= 0:
            raise SpecError(f"{self.name}: gain={gain:g} would share for nothing", hint="write gain=0.1")
        if memory is not None and memory <= 0:
            raise SpecError(f"{self.name}: memory={memory} holds no job", hint="write memory=16GiB")
        self.gain = gain
        self.memory = memory
        self._order = ORDERS[order]()
        self._views: dict[int, OrderView] = {}
        self._kinds: dict[int, Kind] = {}
        self._allocations: dict[int, SharedAllocation] = {}
        self._open: dict[int, dict[Kind, dict[int, SharedAllocation]]] = {}
        """Allocations without a guest, by GPUs, kind of the owner and gang."""
        self._allocation_of: dict[int, SharedAllocation] = {}
        """Allocation of each job that holds GPUs, by number."""
        self._waiting: dict[int, dict[Kind, dict[int, Active]]] = {}
        """Jobs that hold nothing, by GPUs, kind and number."""
        self._displaced: dict[int, int] = {}
        """Gang whose GPUs each displaced job still holds, by number. A displaced job lost its owner or cannot stay."""
        self._to_match: set[int] = set()
        """Numbers of GPUs that have to be matched again."""
        self._changed: dict[int, SharedAllocation] = {}
        self._moved: set[int] = set()
        """Numbers of jobs that have to change their GPUs."""
        self._gangs = itertools.count()
        self._known: dict[tuple[int, tuple[Kind, ...]], tuple[float, ...] | None] = {}

    def times(self, job: Job, step: StepTimes) -> Kind:
        """Step times on which sharing depends: by default computation and exposed communication [s]."""
        return step

    @abstractmethod
    def together(self, gpus: int, kinds: tuple[Kind, ...]) -> tuple[float, ...] | None:
        """Share of its own speed that each of these has on the same GPUs; None: they must not share."""

    def begin(self, cluster: Cluster, jobs: Sequence[Job]) -> None:
        """See `Policy`."""
        super().begin(cluster, jobs)
        no_steps = [job for job in jobs if step_times(job) is None]
        if no_steps:
            hint = "give it columns exposed and step_s, or take an exclusive policy such as srtf"
            raise self._lacks("seconds that a step computes and communicates", no_steps, hint)
        no_memory = [job for job in jobs if memory_bytes(job) is None]
        if no_memory and self.memory is not None:
            hint = "give it a column memory_bytes, or leave memory= out"
            raise self._lacks("bytes of memory that a job needs of a GPU", no_memory, hint)
        for job in jobs:
            self._kind(job)
        self._order.begin(cluster, jobs)

    def _lacks(self, what: str, jobs: Sequence[Job], hint: str) -> SpecError:
        told = f"the trace does not tell those of job {first_of(jobs)}"
        return SpecError(f"policy {self.name!r} needs the {what}, and {told}", hint=hint)

    def arrived(self, job: Active, now_s: float) -> None:
        """Let the job wait."""
        view = self._views[job.number] = OrderView(job)
        self._kinds[job.number] = self._kind(job.job)
        self._start_waiting(job)
        self._order.arrived(view, now_s)

    def finished(self, job: Active, now_s: float) -> None:
        """Remove the job from its allocation. If it was the owner, its guest is displaced."""
        view = self._views.pop(job.number)
        if job.number in self._displaced:
            del self._displaced[job.number]
        else:
            self._leave(job, owned=view.gpus > 0)
        if view.gpus:
            self._order.finished(view, now_s)
        else:
            self._order.withdrawn(view, now_s)
        del self._kinds[job.number]

    def decide(self, now_s: float) -> Iterator[Change]:
        """The changes of the order, then those of sharing."""
        self._moved.clear()
        self._update_owners(now_s)
        sizes = sorted(self._to_match)
        self._to_match.clear()
        for gpus in sizes:
            self._match(gpus)
        for number in self._displaced:
            view = self._views[number]
            self._start_waiting(view.real)
            self._order.retimed(view, now_s)
            yield view.real, Grant(0)
        self._displaced.clear()
        for allocation in self._changed.values():
            yield from self._grants(allocation, now_s)
        self._changed.clear()

    def rates(self, gpus: int, kinds: tuple[Kind, ...]) -> tuple[float, ...] | None:
        """Rates of jobs of these kinds, ascending, on the same GPUs; None: they must not share."""
        if len(kinds) == 1:
            return (1.0,)
        key = (gpus, kinds)
        if key not in self._known:
            fits = self.memory is None or sum(kind[0] for kind in kinds) <= self.memory
            rates = self.together(gpus, tuple(kind[1:] for kind in kinds)) if fits else None
            if rates is not None and sum(rates) < 1 + self.gain:
                rates = None
            self._known[key] = None if rates is None else tuple(min(1.0, rate) for rate in rates)
        return self._known[key]

    def _update_owners(self, now_s: float) -> None:
        """Update the owners by the decisions of the order."""
        started: list[OrderView] = []
        stopped: list[OrderView] = []
        for active, grant in list(self._order.decide(now_s)):
            view = self._views[active.number]
            view.gpus, view.rate = grant.gpus, 1.0
            view.speed = view.job.speed(grant.gpus) if grant.gpus else 0.0
            (started if grant.gpus else stopped).append(view)
        for view in stopped:
            gang = self._allocation_of[view.number].gang
            self._leave(view.real, owned=True)
            self._displaced[view.number] = gang
        for view in started:
            job = view.real
            allocation = SharedAllocation(next(self._gangs), view.gpus, [])
            if job.number in self._displaced:
                self._join(job, allocation)
            else:
                if job.number in self._allocation_of:
                    self._leave(job, owned=False)
                    self._moved.add(job.number)
                else:
                    self._stop_waiting(job)
                self._add(allocation, job)
            self._allocations[allocation.gang] = allocation
            if view.began_s is not None:
                self._order.retimed(view, now_s)

    def _match(self, gpus: int) -> None:
        """Admit guests to allocations without one, for the largest total gain."""
        displaced = [self._views[number].real for number in self._displaced if self._views[number].job.gpus == gpus]
        waiting = dict(itertools.islice(self._waiting.get(gpus, {}).items(), KINDS))
        owners = self._open.get(gpus, {})
        kinds = dict.fromkeys((*(self._kinds[job.number] for job in displaced), *waiting))
        gains = {(owner, kind): self._gain(gpus, owner, kind) for owner in owners for kind in kinds}
        allocations = [
            allocation
            for owner, same_kind in owners.items()
            if any(gains[owner, kind] for kind in kinds)
            for allocation in same_kind.values()
        ]
        if not allocations:
            return
        useful = [kind for kind in waiting if any(gains[owner, kind] for owner in owners)]
        queues = {kind: list(itertools.islice(waiting[kind].values(), len(allocations))) for kind in useful}
        guests = displaced + [job for queue in queues.values() for job in queue]
        table = np.array(
            [
                [gains[allocation.member_kinds[0], self._kinds[guest.number]] for guest in guests]
                for allocation in allocations
            ]
        )
        for row, allocation in enumerate(allocations):
            for column, guest in enumerate(displaced):
                if table[row, column] and self._could_stay(allocation, self._displaced[guest.number]):
                    table[row, column] += STAYING
        rows, columns = linear_sum_assignment(table, maximize=True)
        heads = {kind: iter(queue) for kind, queue in queues.items()}
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            if table[row, column]:
                guest = guests[column]
                if column >= len(displaced):
                    guest = next(heads[self._kinds[guest.number]])
                    self._stop_waiting(guest)
                    self._add(allocations[row], guest)
                else:
                    self._join(guest, allocations[row])

    def _gain(self, gpus: int, owner: Kind, guest: Kind) -> float:
        """Gain of a guest, in jobs' worth of steps; 0 if it is too small."""
        rates = self.rates(gpus, tuple(sorted((owner, guest))))
        if rates is None:
            return 0.0
        gain = sum(rates) - 1.0
        return gain if gain >= self.gain else 0.0

    def _could_stay(self, allocation: SharedAllocation, gang: int) -> bool:
        """True if a job on the GPUs of `gang` could join `allocation` without a move."""
        if gang in self._allocations:
            return gang == allocation.gang
        return allocation.fresh and allocation.inherits_gang in (None, gang)

    def _join(self, job: Active, allocation: SharedAllocation) -> None:
        """Move a displaced job to an allocation, which takes over the job's GPUs if it has none and they are free."""
        gang = self._displaced.pop(job.number)
        if self._could_stay(allocation, gang) and gang not in self._allocations:
            taken = any(other.inherits_gang == gang for other in self._changed.values() if other is not allocation)
            if not taken:
                allocation.inherits_gang = gang
        if gang not in (allocation.gang, allocation.inherits_gang):
            self._moved.add(job.number)
        self._add(allocation, job)

    def _leave(self, job: Active, owned: bool) -> None:
        """Remove a job from its allocation. The guest of an owner that leaves is displaced."""
        allocation = self._allocation_of[job.number]
        self._remove(allocation, job)
        if owned:
            del self._allocations[allocation.gang]
            for guest in allocation.members:
                self._remove(allocation, guest)
                self._displaced[guest.number] = allocation.gang
            self._changed.pop(allocation.gang, None)

    def _grants(self, allocation: SharedAllocation, now_s: float) -> Iterator[Change]:
        """The grants of all members."""
        allocation.fresh, allocation.inherits_gang = False, None
        rates = self.rates(allocation.gpus, allocation.member_kinds)
        assert rates is not None  # their rates were checked when they were admitted
        members = sorted(allocation.members, key=lambda job: (self._kinds[job.number], job.number))
        for job, rate in zip(members, rates, strict=True):
            if job.number in self._moved:
                yield job, Grant(0)
            yield job, Grant(allocation.gpus, rate, allocation.gang if len(members) > 1 else None)
            view = self._views[job.number]
            if view.began_s is None:
                view.began_s = now_s
            if view.gpus and view.rate != rate:
                view.rate, view.speed = rate, rate * job.job.speed(allocation.gpus)
                self._order.retimed(view, now_s)

    def _kind(self, job: Job) -> Kind:
        step = step_times(job)
        assert step is not None  # checked by `begin`
        return (memory_bytes(job) or 0.0, *self.times(job, step))

    def _add(self, allocation: SharedAllocation, job: Active) -> None:
        """Add a job to an allocation."""
        self._set_members(allocation, [*allocation.members, job])
        self._allocation_of[job.number] = allocation

    def _remove(self, allocation: SharedAllocation, job: Active) -> None:
        self._set_members(allocation, [member for member in allocation.members if member is not job])
        del self._allocation_of[job.number]

    def _set_members(self, allocation: SharedAllocation, members: list[Active]) -> None:
        owners = self._open.setdefault(allocation.gpus, {})
        if len(allocation.members) == 1:
            kind = allocation.member_kinds[0]
            del owners[kind][allocation.gang]
            if not owners[kind]:
                del owners[kind]
        allocation.members = members
        allocation.member_kinds = tuple(sorted(self._kinds[job.number] for job in members))
        if len(members) == 1:
            owners.setdefault(allocation.member_kinds[0], {})[allocation.gang] = allocation
        self._changed[allocation.gang] = allocation
        self._to_match.add(allocation.gpus)

    def _start_waiting(self, job: Active) -> None:
        self._to_match.add(job.job.gpus)
        kinds = self._waiting.setdefault(job.job.gpus, {})
        kinds.setdefault(self._kinds[job.number], {})[job.number] = job

    def _stop_waiting(self, job: Active) -> None:
        kinds = self._waiting[job.job.gpus]
        kind = self._kinds[job.number]
        del kinds[kind][job.number]
        if not kinds[kind]:
            del kinds[kind]


class CrossoverPairs(Sharing):
    """Two jobs take turns on the same GPUs, so that one computes while the other communicates (arXiv 2103.07974).

    `planning.turns` predicts their speed exactly: the steady state of the best turn order, in which a job computes and
    then waits for its gradients over a shared link. The model ignores the cost of passing a turn, other pairs on the
    same link, and caches.

    With ρ, exposed communication over compute, Σ rates ≤ 1 + the larger ρ. So two jobs below `ratio` cannot gain more
    than `ratio`, and are not paired. Raises SpecError for a ratio below zero, and as `Sharing` does.
    """

    name = "crossover-pairs"

    def __init__(
        self, order: str = "fifo-backfill", ratio: float = 0.1, gain: float = 0.1, memory: int | None = None
    ) -> None:
        if ratio < 0:
            raise SpecError(f"{self.name}: ratio={ratio:g} is below zero", hint="write ratio=0.1")
        super().__init__(order, gain, memory)
        self.ratio = ratio

    def together(self, gpus: int, kinds: tuple[Kind, ...]) -> tuple[float, ...] | None:
        """Rates in the best turn order."""
        jobs = [JobTimes(compute_s, exposed_s) for compute_s, exposed_s in kinds]
        if all(job.communication_s < self.ratio * job.compute_s for job in jobs):
            return None
        return pair_rates(*jobs)


class Jigsaw(Sharing):
    """JigSaw: jobs run spatial partial backpropagation, and iterations of other jobs fill the gaps that it leaves.

    The idea is that of Kumar and others, *Doing More by Doing Less* (DistributedML 2021, arXiv 2111.10672), of which
    only the abstract was available; the rest is from first principles. On w GPUs each job has min(k, w) levels.
    `planning.turns` places deep and shallow workers, and finds the turn order and the exact time of a round. The
    forward pass takes a job's `forward_share` of the computation on every worker; of the backward pass a worker of
    level i does i/k. Exposed communication and memory are charged in full, because the saved part is unknown.

    A job alone runs at full speed, because its full-depth workers decide; one on a single GPU shares with no job. The
    gain is in steps, and a step of partial backpropagation is worth less. Raises SpecError for k out of range, and as
    `Sharing` does.
    """

    name = "jigsaw"

    def __init__(self, k: int = 4, order: str = "fifo-backfill", gain: float = 0.1, memory: int | None = None) -> None:
        if not 2 <= k <= MAX_LEVELS:
            raise SpecError(f"{self.name}: k={k} levels are not 2 to {MAX_LEVELS}", hint="write k=4")
        super().__init__(order, gain, memory)
        self.k = k

    def times(self, job: Job, step: StepTimes) -> Kind:
        """Time [s] of forward pass, backward pass and exposed communication."""
        forward_s = forward_share(job) * step.compute_s
        return (forward_s, step.compute_s - forward_s, step.exposed_s)

    def together(self, gpus: int, kinds: tuple[Kind, ...]) -> tuple[float, ...] | None:
        """Rates in the best packing."""
        if gpus == 1:
            return None
        return packed_rates(gpus, min(self.k, gpus), *(SpatialJob(*kind) for kind in kinds))


@lru_cache(maxsize=1 << 16)
def pair_rates(*jobs: JobTimes) -> tuple[float, ...]:
    """Steps a second of each job in the best turn order, over those alone."""
    plan = best_pattern(jobs, MAX_PATTERN)
    return tuple(plan.pattern.count(index) * job.alone_s / plan.round_s for index, job in enumerate(jobs))


@lru_cache(maxsize=1 << 16)
def packed_rates(gpus: int, levels: int, *jobs: SpatialJob) -> tuple[float, ...]:
    """Steps a second of each job in the best packing, over those alone."""
    return pack(jobs, gpus, levels, MAX_PATTERN).rates
