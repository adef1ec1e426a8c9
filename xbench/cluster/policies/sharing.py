"""Sharing: an exclusive policy says who has GPUs of its own; jobs that wait may ride on the GPUs of those that have.

**Owners** are the jobs that the order (`order`: an exclusive policy, by name) has given GPUs. A **guest** is a job that
waits in that order, asked for as many GPUs as some owner has, and shares that owner's. So a guest never keeps GPUs from
a job that comes before it, and a job that must wait anyway loses nothing by riding. Owners get slower; that is what
sharing costs, and why it has to gain `gain` in all: guests are let in only where Σ rates grows by that much.

**Matching.** Every pair is an owner and a job that waits: the graph is bipartite, and `scipy` finds its matching of
largest total gain exactly. (Two owners that moved together would free GPUs for the next two in the order; that gains no
more than letting these ride, and costs a restart. Two that both wait have no GPUs.) It is sought for each number of
GPUs by itself, and anew whenever a job of that number comes, goes, starts or stops; a pair that exists stays until one
of both leaves. Where more than two may share, owners with one guest are matched once more, and so on. Jobs of one
*kind* (the same times of a step, the same memory) are alike, so predictions are kept by kind, of each kind no more
jobs are looked at than there are owners, and of equals the one that began to wait first rides.

**When the owner leaves** (it ends, or the order stops it), its guests need another. If the order has just started one
of them, it owns the GPUs that it is on. If it has just started another job of that many GPUs with which it pays, they
stay where they are and that one comes to them. Otherwise they move to the GPUs of somebody else, which costs a restart,
or are stopped, which costs one when they go on. A guest whom the order gives GPUs of its own moves there, and restarts.

The order sees a guest as one that waits. Orders that look at remaining work look again when a job begins or ends to
share, and not in between; backfilling takes jobs that wait for as long as they were when they came.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from xbench.cluster.jobs import Job
from xbench.cluster.policies.fifo import Fifo
from xbench.cluster.policies.fifo_backfill import FifoBackfill
from xbench.cluster.policies.order import Order
from xbench.cluster.policies.sjf import Sjf
from xbench.cluster.policies.srtf import Srtf
from xbench.cluster.policy import Active, Change, Cluster, Grant, Policy
from xbench.cluster.step_times import memory_bytes, require_memory, require_steps
from xbench.errors import SpecError, unknown

ORDERS: Mapping[str, Callable[[], Order]] = {
    "fifo": Fifo, "fifo-backfill": FifoBackfill, "sjf": Sjf, "srtf": Srtf,
}  # fmt: skip
KINDS = 64
"""Of jobs that wait for one number of GPUs: more are not looked at at once."""

STAYING = 1e-6
"""Of two matchings that gain the same, the one in which a guest need not move is better by that."""

Kind = tuple[float, ...]
"""Memory [B], and what a policy knows of a step."""


class Seen(Active):
    """A job as the order sees it: it holds GPUs of its own, or none, whatever it shares."""

    __slots__ = ("real",)

    def __init__(self, real: Active) -> None:
        super().__init__(real.job, real.number)
        self.real = real

    def remaining(self, now_s: float) -> float:
        """Of the real job."""
        return self.real.remaining(now_s)

    def attained_s(self, now_s: float) -> float:
        """Of the real job."""
        return self.real.attained_s(now_s)

    def computed_s(self, now_s: float) -> float:
        """Computing time [s] of the real job."""
        return self.real.computed_s(now_s)


@dataclass(eq=False)
class Place:
    """The GPUs of an owner, and who is on them: the owner first, then guests. `gang` is the place's name."""

    gang: int
    gpus: int
    members: list[Active]
    crew: tuple[Kind, ...] = ()
    """The kinds of the members, ascending."""
    fresh: bool = True
    """Whether its owner has been started at this instant: it has no GPUs yet, and any will do."""
    stands_in_for: int | None = None
    """Of a fresh place: the one whose owner left, and whose GPUs it has taken over because guests are still there."""


class Sharing(Policy):
    """See the module. Subclasses say what a kind is, and at what rates jobs of some kinds share.

    Raises SpecError for an order that does not exist, for a gain that is not above zero, and in `begin` for a trace
    that lacks what is needed.
    """

    name: str

    def __init__(self, order: str, gain: float, memory: int | None, most: int = 2) -> None:
        if order not in ORDERS:
            raise unknown("order", order, ORDERS)
        if gain <= 0:
            raise SpecError(f"{self.name}: gain={gain:g} would share for nothing", hint="write gain=0.1")
        if memory is not None and memory <= 0:
            raise SpecError(f"{self.name}: memory={memory} holds no job", hint="write memory=16GiB")
        self.gain = gain
        self.memory = memory
        self.most = most
        self._order = ORDERS[order]()
        self._seen: dict[int, Seen] = {}
        self._kinds: dict[int, Kind] = {}
        self._places: dict[int, Place] = {}
        self._open: dict[tuple[int, int], dict[tuple[Kind, ...], dict[int, Place]]] = {}
        """Places by GPUs and number of members, by crew, by name."""
        self._place_of: dict[int, Place] = {}
        """By number, of everybody that holds GPUs."""
        self._waiting: dict[int, dict[Kind, dict[int, Active]]] = {}
        """Jobs that hold nothing, by GPUs, kind and number."""
        self._left: dict[int, int] = {}
        """Jobs that lost their owner or their company, by number: the place where they still are."""
        self._looked: set[int] = set()
        """Numbers of GPUs at which something happened."""
        self._changed: dict[int, Place] = {}
        self._moved: set[int] = set()
        """Numbers of jobs that have to leave the GPUs on which they are for others."""
        self._gangs = itertools.count()
        self._known: dict[tuple[int, tuple[Kind, ...]], tuple[float, ...] | None] = {}

    @abstractmethod
    def times(self, job: Job) -> Kind:
        """What sharing depends on."""

    @abstractmethod
    def together(self, gpus: int, kinds: tuple[Kind, ...]) -> tuple[float, ...] | None:
        """The share of its speed alone that each of these has on the same GPUs; None: they are not to share."""

    def begin(self, cluster: Cluster, jobs: Iterable[Job]) -> None:
        """See `Policy`."""
        super().begin(cluster, jobs)
        jobs = list(jobs)
        require_steps(self.name, jobs)
        if self.memory is not None:
            require_memory(self.name, jobs)
        for job in jobs:
            self._kind(job)
        self._order.begin(cluster, jobs)

    def arrived(self, job: Active, now_s: float) -> None:
        """It waits."""
        seen = self._seen[job.number] = Seen(job)
        self._kinds[job.number] = self._kind(job.job)
        self._wait(job)
        self._order.arrived(seen, now_s)

    def finished(self, job: Active, now_s: float) -> None:
        """It leaves its place; if it owned it, the others there have lost their owner."""
        seen = self._seen.pop(job.number)
        if job.number in self._left:
            del self._left[job.number]
        else:
            self._leave(job, owned=seen.gpus > 0)
        if seen.gpus:
            self._order.finished(seen, now_s)
        else:
            self._order.withdrawn(seen, now_s)
        del self._kinds[job.number]

    def decide(self, now_s: float) -> Iterator[Change]:
        """What the order changes, then who rides with whom."""
        self._moved.clear()
        self._own(now_s)
        looked = sorted(self._looked)
        self._looked.clear()
        for gpus in looked:
            for size in range(1, self.most):
                self._match(gpus, size)
        for number in self._left:
            seen = self._seen[number]
            self._wait(seen.real)
            self._order.retimed(seen, now_s)
            yield seen.real, Grant(0)
        self._left.clear()
        for place in self._changed.values():
            yield from self._grants(place, now_s)
        self._changed.clear()

    def rates(self, gpus: int, kinds: tuple[Kind, ...]) -> tuple[float, ...] | None:
        """Of jobs of these kinds, ascending, on the same GPUs; None: they are not to share."""
        if len(kinds) == 1:
            return (1.0,)
        key = (gpus, kinds)
        if key not in self._known:
            fits = self.memory is None or sum(kind[0] for kind in kinds) <= self.memory
            found = self.together(gpus, tuple(kind[1:] for kind in kinds)) if fits else None
            if found is not None and sum(found) < 1 + (len(kinds) - 1) * self.gain:
                found = None
            self._known[key] = None if found is None else tuple(min(1.0, rate) for rate in found)
        return self._known[key]

    def _own(self, now_s: float) -> None:
        """Ask the order whose GPUs are whose now."""
        started: list[Seen] = []
        stopped: list[Seen] = []
        for active, grant in list(self._order.decide(now_s)):
            seen = self._seen[active.number]
            seen.gpus, seen.rate = grant.gpus, 1.0
            seen.speed = seen.job.speed(grant.gpus) if grant.gpus else 0.0
            (started if grant.gpus else stopped).append(seen)
        for seen in stopped:
            gang = self._place_of[seen.number].gang
            self._leave(seen.real, owned=True)
            self._left[seen.number] = gang
        for seen in started:
            job = seen.real
            place = Place(next(self._gangs), seen.gpus, [])
            if job.number in self._left:
                self._come(job, place)
            else:
                if job.number in self._place_of:
                    self._leave(job, owned=False)
                    self._moved.add(job.number)
                else:
                    self._unwait(job)
                self._file(place, job)
            self._places[place.gang] = place
            if seen.began_s is not None:
                self._order.retimed(seen, now_s)

    def _match(self, gpus: int, size: int) -> None:
        """Let jobs ride with owners that have so many on their GPUs, for the largest gain in all."""
        left = [self._seen[number].real for number in self._left if self._seen[number].job.gpus == gpus]
        waiting = dict(itertools.islice(self._waiting.get(gpus, {}).items(), KINDS))
        crews = self._open.get((gpus, size), {})
        kinds = dict.fromkeys((*(self._kinds[job.number] for job in left), *waiting))
        gains = {(crew, kind): self._gain(gpus, crew, kind) for crew in crews for kind in kinds}
        places = [place for crew, some in crews.items() if any(gains[crew, kind] for kind in kinds)
                  for place in some.values()]  # fmt: skip
        if not places:
            return
        useful = [kind for kind in waiting if any(gains[crew, kind] for crew in crews)]
        queues = {kind: list(itertools.islice(waiting[kind].values(), len(places))) for kind in useful}
        guests = left + [job for queue in queues.values() for job in queue]
        table = np.array([[gains[place.crew, self._kinds[guest.number]] for guest in guests] for place in places])
        for row, place in enumerate(places):
            for column, guest in enumerate(left):
                if table[row, column] and self._could_stay(place, self._left[guest.number]):
                    table[row, column] += STAYING
        rows, columns = linear_sum_assignment(table, maximize=True)
        heads = {kind: iter(queue) for kind, queue in queues.items()}
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            if table[row, column]:
                guest = guests[column]
                if column >= len(left):
                    guest = next(heads[self._kinds[guest.number]])
                    self._unwait(guest)
                    self._file(places[row], guest)
                else:
                    self._come(guest, places[row])

    def _gain(self, gpus: int, crew: tuple[Kind, ...], kind: Kind) -> float:
        """How many jobs' worth of steps more these GPUs do with one of that kind; 0 where that is too little."""
        before, after = self.rates(gpus, crew), self.rates(gpus, tuple(sorted((*crew, kind))))
        if before is None or after is None:
            return 0.0
        gain = sum(after) - sum(before)
        return gain if gain >= self.gain else 0.0

    def _could_stay(self, place: Place, gang: int) -> bool:
        """Whether somebody on the GPUs of the place `gang` would stay on them if he came to `place`."""
        if gang in self._places:
            return gang == place.gang
        return place.fresh and place.stands_in_for in (None, gang)

    def _come(self, job: Active, place: Place) -> None:
        """From the GPUs where it was left behind to that place, which takes them over if it has none and nobody has."""
        gang = self._left.pop(job.number)
        if self._could_stay(place, gang) and gang not in self._places:
            taken = any(other.stands_in_for == gang for other in self._changed.values() if other is not place)
            if not taken:
                place.stands_in_for = gang
        if gang not in (place.gang, place.stands_in_for):
            self._moved.add(job.number)
        self._file(place, job)

    def _leave(self, job: Active, owned: bool) -> None:
        """It is not in its place any more. Whoever cannot stay there without it is left behind."""
        place = self._place_of[job.number]
        self._unfile(place, job)
        if owned:
            del self._places[place.gang]
        while place.members and (owned or self.rates(place.gpus, place.crew) is None):
            guest = place.members[-1]
            self._unfile(place, guest)
            self._left[guest.number] = place.gang
        if owned:
            self._changed.pop(place.gang, None)

    def _grants(self, place: Place, now_s: float) -> Iterator[Change]:
        """What everybody there holds now."""
        place.fresh, place.stands_in_for = False, None
        found = self.rates(place.gpus, place.crew)
        assert found is not None  # they were let in, or left behind
        members = sorted(place.members, key=lambda job: (self._kinds[job.number], job.number))
        for job, rate in zip(members, found, strict=True):
            if job.number in self._moved:
                yield job, Grant(0)
            yield job, Grant(place.gpus, rate, place.gang if len(members) > 1 else None)
            seen = self._seen[job.number]
            if seen.began_s is None:
                seen.began_s = now_s
            if seen.gpus and seen.rate != rate:
                seen.rate, seen.speed = rate, rate * job.job.speed(place.gpus)
                self._order.retimed(seen, now_s)

    def _kind(self, job: Job) -> Kind:
        return (memory_bytes(job) or 0.0, *self.times(job))

    def _file(self, place: Place, job: Active) -> None:
        """It is there from now on."""
        self._refile(place, [*place.members, job])
        self._place_of[job.number] = place

    def _unfile(self, place: Place, job: Active) -> None:
        self._refile(place, [member for member in place.members if member is not job])
        del self._place_of[job.number]

    def _refile(self, place: Place, members: list[Active]) -> None:
        if place.members:
            same = self._open[place.gpus, len(place.members)]
            del same[place.crew][place.gang]
            if not same[place.crew]:
                del same[place.crew]
        place.members = members
        place.crew = tuple(sorted(self._kinds[job.number] for job in members))
        if members:
            crews = self._open.setdefault((place.gpus, len(members)), {})
            crews.setdefault(place.crew, {})[place.gang] = place
        self._changed[place.gang] = place
        self._looked.add(place.gpus)

    def _wait(self, job: Active) -> None:
        self._looked.add(job.job.gpus)
        kinds = self._waiting.setdefault(job.job.gpus, {})
        kinds.setdefault(self._kinds[job.number], {})[job.number] = job

    def _unwait(self, job: Active) -> None:
        kinds = self._waiting[job.job.gpus]
        kind = self._kinds[job.number]
        del kinds[kind][job.number]
        if not kinds[kind]:
            del kinds[kind]
