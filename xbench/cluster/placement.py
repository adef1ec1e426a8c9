"""Which hosts a job's GPUs are on: packed or spread.

Hosts are alike. Each grant is placed when it is made, on whatever is free then, and stays where it is until it changes:
nobody is moved for somebody else's sake, so free GPUs come to lie scattered (fragmentation). What is granted at one
instant is placed largest first, after all that ends or changes at that instant has been taken away. A change of rate
alone moves nothing. Policies know nothing of it: they count GPUs, and these always suffice somewhere.

| rule | on which hosts |
| --- | --- |
| `packed` | on the fewest that what is free allows: those with the most free whole, and the rest where it fits best |
| `spread` | on as many as possible, as evenly as what is free allows; the odd ones where the most are free |

It fits best on the host with the fewest free GPUs that suffice. `spread` is what a scheduler does that balances load
and knows nothing of links: Kubernetes' default scores spread pods of one GPU each over the emptiest nodes.

**A gang**, jobs that share GPUs, is placed once, as wide as its widest member; a narrower member is on the first of
these GPUs. A job that joins or leaves a gang and keeps its size takes its GPUs along where nobody else is on them.

**Links.** The GPUs of a host share one link to the others. Each job or gang on several hosts has one ring over them,
which enters and leaves every one of its hosts once. k rings at a host have an equal share of its link each, whether or
not the others send anything just then: the most that it can cost. A ring goes at the pace of its slowest link, so what
counts is the largest k of its hosts, the `rings` that speeds are told (`hosts`). When rings come or go, those that
meet them change their pace, at no cost.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, cast, get_args

from xbench.cluster.hosts import PlacedSpeed
from xbench.cluster.policy import Active, Cluster, Placement
from xbench.errors import SpecError, unknown

PLACEMENTS: tuple[Placement, ...] = get_args(Placement)

Placed = tuple[tuple[int, int], ...]
"""(host, GPUs on it), in the order in which narrower members of a gang use them. A gang that grew may name one host
twice."""

Holder = tuple[bool, int]
"""Who holds GPUs: (True, gang) or (False, number of a job)."""


class Hosts:
    """The free GPUs of every host."""

    def __init__(self, hosts: int, gpus_per_host: int, rule: Placement) -> None:
        self.rule = rule
        self.free = [gpus_per_host] * hosts
        self.left = gpus_per_host * hosts
        """All that are free."""
        self._with: list[list[int]] = [[] for _ in range(gpus_per_host)] + [list(range(hosts))]
        """By the number of free GPUs: the hosts that have so many, ascending."""

    def take(self, gpus: int) -> Placed:
        """Place so many GPUs. Raises RuntimeError where fewer are free."""
        if gpus > self.left:
            raise RuntimeError(f"{gpus} GPUs were to be placed, and {self.left} are free")
        placed = self._packed(gpus) if self.rule == "packed" else self._spread(gpus)
        for host, count in placed:
            self._set(host, self.free[host] - count)
        return placed

    def give_back(self, placed: Placed) -> None:
        """These are free again."""
        for host, count in placed:
            self._set(host, self.free[host] + count)

    def _packed(self, gpus: int) -> Placed:
        found: list[tuple[int, int]] = []
        most = len(self._with) - 1
        for free in range(most, 0, -1):
            for host in self._with[free]:
                if gpus <= free:
                    whole = {host for host, _ in found}
                    best = next(one for size in range(gpus, most + 1) for one in self._with[size] if one not in whole)
                    return (*found, (best, gpus))
                found.append((host, free))
                gpus -= free
        return tuple(found)

    def _spread(self, gpus: int) -> Placed:
        each = 0
        able = sum(map(len, self._with[1:]))
        """Hosts that have more than `each` free."""
        while able and gpus >= able:
            gpus -= able
            each += 1
            able -= len(self._with[each])
        found: list[tuple[int, int]] = []
        for free in range(len(self._with) - 1, 0, -1):
            for host in self._with[free]:
                more = int(free > each and gpus > 0)
                gpus -= more
                if not min(free, each) + more:
                    return tuple(found)
                found.append((host, min(free, each) + more))
        return tuple(found)

    def _set(self, host: int, free: int) -> None:
        hosts = self._with[self.free[host]]
        del hosts[bisect_left(hosts, host)]
        insort(self._with[free], host)
        self.left += free - self.free[host]
        self.free[host] = free


class Moved(NamedTuple):
    """A job that has other GPUs, or whose ring goes at another pace: what it does in a second now."""

    job: Active
    speed: float


class Layout:
    """Who is on which host. Of a cluster of several hosts, and jobs whose speeds know of them (`hosts.on_hosts`)."""

    def __init__(self, cluster: Cluster) -> None:
        assert cluster.gpus_per_host is not None
        self.hosts = Hosts(cluster.hosts, cluster.gpus_per_host, cluster.placement)
        self._at: dict[Holder, Placed] = {}
        self._holder: dict[int, Holder] = {}
        """Of each job that is placed, by number."""
        self._members: dict[Holder, dict[int, Active]] = {}
        self._rings: list[set[Holder]] = [set() for _ in range(cluster.hosts)]
        """Of each host: whose rings use its link."""
        self._counted = [0] * cluster.hosts
        """How many these were after the last instant."""
        self._slowest: dict[Holder, int] = {}
        """How many rings share the slowest link of each; 1 within a host."""
        self._speed: dict[int, float] = {}

    def at(self, job: Active) -> Placed:
        """Where a job is, as wide as it was when `update` last saw it; () if it is nowhere."""
        holder = self._holder.get(job.number)
        return () if holder is None else _first(self._at[holder], job.gpus)

    def update(self, changed: Iterable[Active]) -> list[Moved]:
        """After the grants of one instant: place the jobs that have changed, and say whose speed is another."""
        jobs = {job.number: job for job in changed}
        touched: dict[Holder, None] = {}
        before = {number: self._holder.pop(number) for number in jobs if number in self._holder}
        for number, holder in before.items():
            del self._members[holder][number]
            touched[holder] = None
        for number, job in jobs.items():
            self._speed.pop(number, None)
            if job.gpus:
                holder = (False, number) if job.gang is None else (True, job.gang)
                self._holder[number] = holder
                self._members.setdefault(holder, {})[number] = job
                touched[holder] = None
        moved = []
        for holder in self._replace(touched, before):
            ring = _ring(self._at[holder])
            self._slowest[holder] = max((len(self._rings[host]) for host in ring), default=1)
            for number, job in self._members[holder].items():
                speed = self._speed_of(holder, job)
                if self._speed.get(number) != speed:
                    self._speed[number] = speed
                    moved.append(Moved(job, speed))
        return moved

    def _replace(self, touched: Iterable[Holder], before: dict[int, Holder]) -> list[Holder]:
        """Give these holders what they need now; all whose speed may have changed by that."""
        for holder in touched:
            if holder not in self._at:
                self._adopt(holder, before)
        wanted: list[tuple[int, Holder]] = []
        met_hosts: set[int] = set()
        for holder in touched:
            need = max((job.gpus for job in self._members[holder].values()), default=0)
            placed = self._at.get(holder, ())
            held = sum(count for _, count in placed)
            if need == held:
                continue
            is_gang, _ = holder
            keeps = min(need, held) if is_gang else 0
            self.hosts.give_back(_rest(placed, keeps))
            met_hosts |= self._set(holder, _first(placed, keeps))
            if need > keeps:
                wanted.append((need - keeps, holder))
        for gpus, holder in sorted(wanted, key=lambda one: -one[0]):
            met_hosts |= self._set(holder, self._at.get(holder, ()) + self.hosts.take(gpus))
        for holder in touched:
            if not self._members[holder]:
                del self._members[holder]
                self._slowest.pop(holder, None)
        met = dict.fromkeys(holder for holder in touched if holder in self._members)
        met |= dict.fromkeys(holder for host in sorted(met_hosts) for holder in self._met(host))
        return list(met)

    def _met(self, host: int) -> list[Holder]:
        """Whose slowest link may be another because rings have come to this host or gone from it."""
        before, now = self._counted[host], len(self._rings[host])
        self._counted[host] = now
        if before == now:
            return []
        slowest = self._slowest
        return [one for one in self._rings[host] if one in slowest and (now > slowest[one] or before == slowest[one])]

    def _adopt(self, holder: Holder, before: dict[int, Holder]) -> None:
        """The GPUs that one of its members brings along from a holder that nobody is left of."""
        members = self._members[holder]
        need = max((job.gpus for job in members.values()), default=0)
        for number in members:
            old = before.get(number)
            placed = self._at.get(old, ()) if old is not None and not self._members[old] else ()
            if old is not None and placed and sum(count for _, count in placed) == need:
                self._set(old, ())
                self._set(holder, placed)
                return

    def _set(self, holder: Holder, placed: Placed) -> set[int]:
        """It is there from now on; the hosts on which its ring comes or goes by that."""
        gone, come = _ring(self._at.pop(holder, ())), _ring(placed)
        for host in gone:
            self._rings[host].discard(holder)
        for host in come:
            self._rings[host].add(holder)
        if placed:
            self._at[holder] = placed
        return gone ^ come

    def _speed_of(self, holder: Holder, job: Active) -> float:
        by_host: Counter[int] = Counter()
        for host, count in _first(self._at[holder], job.gpus):
            by_host[host] += count
        speed = cast(PlacedSpeed, job.job.speed)
        return speed.placed(tuple(sorted(by_host.values())), self._slowest[holder] if len(by_host) > 1 else 1)


def _first(placed: Placed, gpus: int) -> Placed:
    """The first so many of these GPUs."""
    found = []
    for host, count in placed:
        if gpus <= 0:
            break
        found.append((host, min(count, gpus)))
        gpus -= count
    return tuple(found)


def _rest(placed: Placed, gpus: int) -> Placed:
    """All but the first so many."""
    found = []
    for host, count in placed:
        if count > gpus:
            found.append((host, count - max(0, gpus)))
        gpus -= count
    return tuple(found)


def _ring(placed: Placed) -> set[int]:
    """The hosts that a ring over these GPUs leaves: none where it is within one."""
    hosts = {host for host, _ in placed}
    return hosts if len(hosts) > 1 else set()


def parse_placements(text: str) -> tuple[Placement, ...]:
    """Rules from 'packed,spread'. Raises SpecError for one that is none, naming the nearest, and for one twice."""
    found: list[Placement] = []
    for part in text.split(","):
        name = part.strip()
        rule = next((one for one in PLACEMENTS if one == name), None)
        if rule is None:
            if not name:
                raise SpecError(f"the list of placements {text!r} has an empty place", hint="write packed,spread")
            raise unknown("placement", name, PLACEMENTS)
        if rule in found:
            raise SpecError(f"placement {name!r} stands twice", hint="write it once")
        found.append(rule)
    return tuple(found)
