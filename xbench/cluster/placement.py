"""Placement of jobs on hosts: packed or spread.

Each grant is placed when it is made, on GPUs that are free then, and stays there until it changes. No job moves to make
room for another, so free GPUs become scattered (fragmentation). All ends and changes of an instant are applied first;
then its grants are placed, largest first. Policies count GPUs and know nothing of hosts; a grant may span hosts, so
enough free GPUs always suffice.

**A gang**, jobs that share GPUs, is placed once, as wide as its widest member. A narrower member uses the first of
these GPUs. A job that joins or leaves a gang and keeps its size takes its GPUs along if no other job uses them.

**Links.** The GPUs of a host share one link to the other hosts. Each job or gang on several hosts has one ring over
them, which enters and leaves each host once. k rings at a host each get an equal share of its link, even if the others
are idle: an upper bound of the cost. A ring runs at the pace of its slowest link, so the largest k of its hosts counts:
the `rings` of a speed (`jobs`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from typing import cast, get_args

from xbench.cluster.jobs import PlacedSpeed
from xbench.cluster.policy import Active, Cluster, Placement
from xbench.errors import SpecError, unknown

PLACEMENTS: tuple[Placement, ...] = get_args(Placement)

Placed = tuple[tuple[int, int], ...]
"""(host, GPUs on it), in the order in which narrower members of a gang use them. A gang that grew may name one host
twice."""

Holder = tuple[bool, int]
"""Owner of GPUs: (True, gang) or (False, number of a job)."""


def holder_of(job: Active) -> Holder:
    """The owner of the GPUs of a job: its gang, or itself."""
    return (False, job.number) if job.gang is None else (True, job.gang)


class Hosts:
    """The free GPUs of every host."""

    def __init__(self, hosts: int, gpus_per_host: int, rule: Placement) -> None:
        self.rule = rule
        self.free = [gpus_per_host] * hosts
        self.left = gpus_per_host * hosts
        """Number of all free GPUs."""
        self._hosts_by_free: list[list[int]] = [[] for _ in range(gpus_per_host)] + [list(range(hosts))]
        """The hosts, ascending, by their number of free GPUs."""

    def take(self, gpus: int) -> Placed:
        """Place `gpus` GPUs. Raises RuntimeError if fewer are free."""
        if gpus > self.left:
            raise RuntimeError(f"{gpus} GPUs were to be placed, and {self.left} are free")
        placed = self._packed(gpus) if self.rule == "packed" else self._spread(gpus)
        for host, count in placed:
            self._set(host, self.free[host] - count)
        return placed

    def give_back(self, placed: Placed) -> None:
        """Free these GPUs."""
        for host, count in placed:
            self._set(host, self.free[host] + count)

    def _packed(self, gpus: int) -> Placed:
        """As few hosts as possible: whole hosts with the most free GPUs, and the fullest that suffices for the rest."""
        placed: list[tuple[int, int]] = []
        most = len(self._hosts_by_free) - 1
        for free in range(most, 0, -1):
            for host in self._hosts_by_free[free]:
                if gpus <= free:
                    full = {host for host, _ in placed}
                    best = next(
                        host for size in range(gpus, most + 1) for host in self._hosts_by_free[size] if host not in full
                    )
                    return (*placed, (best, gpus))
                placed.append((host, free))
                gpus -= free
        return tuple(placed)

    def _spread(self, gpus: int) -> Placed:
        """As many hosts as possible, filled evenly; remaining GPUs on those with the most free.

        That models a scheduler that balances load and ignores links, as Kubernetes' default scores do.
        """
        each = 0
        able = sum(map(len, self._hosts_by_free[1:]))
        """Number of hosts that have more than `each` free."""
        while able and gpus >= able:
            gpus -= able
            each += 1
            able -= len(self._hosts_by_free[each])
        placed: list[tuple[int, int]] = []
        for free in range(len(self._hosts_by_free) - 1, 0, -1):
            for host in self._hosts_by_free[free]:
                more = int(free > each and gpus > 0)
                gpus -= more
                if not min(free, each) + more:
                    return tuple(placed)
                placed.append((host, min(free, each) + more))
        return tuple(placed)

    def _set(self, host: int, free: int) -> None:
        hosts = self._hosts_by_free[self.free[host]]
        del hosts[bisect_left(hosts, host)]
        insort(self._hosts_by_free[free], host)
        self.left += free - self.free[host]
        self.free[host] = free


class Layout:
    """The jobs on each host. The cluster has several hosts, and the jobs' speeds know of them (`jobs.on_hosts`)."""

    def __init__(self, cluster: Cluster) -> None:
        assert cluster.gpus_per_host is not None
        self.hosts = Hosts(cluster.hosts, cluster.gpus_per_host, cluster.placement)
        self._at: dict[Holder, Placed] = {}
        self._holder: dict[int, Holder] = {}
        """Holder of each placed job, by number."""
        self._members: dict[Holder, dict[int, Active]] = {}
        self._rings: list[set[Holder]] = [set() for _ in range(cluster.hosts)]
        """Holders whose rings use the link of each host."""
        self._slowest: dict[Holder, int] = {}
        """Number of rings on the slowest link of each holder; 1 within a host."""
        self._speed: dict[int, float] = {}

    def at(self, job: Active) -> Placed:
        """GPUs of a job, as wide as at the last `update`; () if it has none."""
        holder = self._holder.get(job.number)
        return () if holder is None else _first(self._at[holder], job.gpus)

    def update(self, changed: Iterable[Active]) -> list[tuple[Active, float]]:
        """Place the jobs that changed at this instant; returns those with a new speed [work/s]."""
        jobs = {job.number: job for job in changed}
        touched: dict[Holder, None] = {}
        before = {number: self._holder.pop(number) for number in jobs if number in self._holder}
        for number, holder in before.items():
            del self._members[holder][number]
            touched[holder] = None
        for number, job in jobs.items():
            self._speed.pop(number, None)
            if job.gpus:
                holder = self._holder[number] = holder_of(job)
                self._members.setdefault(holder, {})[number] = job
                touched[holder] = None
        moved = []
        for holder in self._place_again(touched, before):
            slowest = max((len(self._rings[host]) for host in _ring(self._at[holder])), default=1)
            if holder not in touched and slowest == self._slowest[holder]:
                continue
            self._slowest[holder] = slowest
            for number, job in self._members[holder].items():
                speed = self._speed_of(holder, job)
                if self._speed.get(number) != speed:
                    self._speed[number] = speed
                    moved.append((job, speed))
        return moved

    def _place_again(self, touched: Iterable[Holder], before: dict[int, Holder]) -> list[Holder]:
        """Place these holders anew; returns them and all rings at hosts where a ring came or went."""
        for holder in touched:
            if holder not in self._at:
                self._adopt(holder, before)
        wanted: list[tuple[int, Holder]] = []
        affected_hosts: set[int] = set()
        for holder in touched:
            need = max((job.gpus for job in self._members[holder].values()), default=0)
            placed = self._at.get(holder, ())
            held = sum(count for _, count in placed)
            if need == held:
                continue
            is_gang, _ = holder
            keeps = min(need, held) if is_gang else 0
            self.hosts.give_back(_without_first(placed, keeps))
            affected_hosts |= self._set(holder, _first(placed, keeps))
            if need > keeps:
                wanted.append((need - keeps, holder))
        for gpus, holder in sorted(wanted, key=lambda want: -want[0]):
            affected_hosts |= self._set(holder, self._at.get(holder, ()) + self.hosts.take(gpus))
        for holder in touched:
            if not self._members[holder]:
                del self._members[holder]
                self._slowest.pop(holder, None)
        affected = dict.fromkeys(holder for holder in touched if holder in self._members)
        affected |= dict.fromkeys(holder for host in sorted(affected_hosts) for holder in self._rings[host])
        return list(affected)

    def _adopt(self, holder: Holder, before: dict[int, Holder]) -> None:
        """Take over the GPUs that a member brings from a holder without members."""
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
        """Set the GPUs of a holder; returns the hosts where its ring comes or goes."""
        left, joined = _ring(self._at.pop(holder, ())), _ring(placed)
        for host in left:
            self._rings[host].discard(holder)
        for host in joined:
            self._rings[host].add(holder)
        if placed:
            self._at[holder] = placed
        return left ^ joined

    def _speed_of(self, holder: Holder, job: Active) -> float:
        by_host: Counter[int] = Counter()
        for host, count in _first(self._at[holder], job.gpus):
            by_host[host] += count
        assert isinstance(job.job.speed, PlacedSpeed)  # see `simulator.check_jobs`
        return job.job.speed.placed(tuple(sorted(by_host.values())), self._slowest[holder] if len(by_host) > 1 else 1)


def _first(placed: Placed, gpus: int) -> Placed:
    """The first `gpus` of these GPUs."""
    first = []
    for host, count in placed:
        if gpus <= 0:
            break
        first.append((host, min(count, gpus)))
        gpus -= count
    return tuple(first)


def _without_first(placed: Placed, gpus: int) -> Placed:
    """All GPUs but the first `gpus`."""
    rest = []
    for host, count in placed:
        if count > gpus:
            rest.append((host, count - max(0, gpus)))
        gpus -= count
    return tuple(rest)


def _ring(placed: Placed) -> set[int]:
    """The hosts that a ring over these GPUs leaves; none within a single host."""
    hosts = {host for host, _ in placed}
    return hosts if len(hosts) > 1 else set()


def parse_placements(text: str) -> tuple[Placement, ...]:
    """Rules from 'packed,spread'. Raises SpecError for an unknown rule, naming the nearest, and for a duplicate."""
    rules = cast(list[Placement], [part.strip() for part in text.split(",")])
    for rule in rules:
        if not rule:
            raise SpecError(f"the list of placements {text!r} has an empty place", hint="write packed,spread")
        if rule not in PLACEMENTS:
            raise unknown("placement", rule, PLACEMENTS)
        if rules.count(rule) > 1:
            raise SpecError(f"placement {rule!r} stands twice", hint="write it once")
    return tuple(rules)
