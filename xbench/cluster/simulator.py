"""Event-by-event simulation of a cluster: arrivals, completions, and the changes that a policy makes at each.

Time jumps from event to event. At each instant the policy hears of completions, then of arrivals in the order of the
trace, and then decides once. Nothing is random: the same trace and policy give the same schedule. Instants are at least
`tolerance_s` apart; events closer than that happen at once.

**Restarts.** A job restarts if it ran before and its number of GPUs changes, or if it runs again after a stop. It then
holds its GPUs for `restart_s` without computing; a first start takes `start_s`. A change of `rate` alone costs nothing.
**GPU time.** A job holds all GPUs of its grant, including shared ones. So the jobs' GPU seconds may add up to more than
the cluster's (`Simulated.held_gpu_s` counts each GPU once). GPU seconds in which a job computed, times its rate, are
**useful**.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from xbench.cluster.jobs import Job, PlacedSpeed
from xbench.cluster.metrics import ClusterMoment, Finished, Simulated, Span
from xbench.cluster.placement import Holder, Layout, Placed, holder_of
from xbench.cluster.policy import Active, Change, Cluster, Policy, due, tolerance_s
from xbench.errors import SpecError

WINDOW = 10_000
"""Decisions without an arrival or an end, after which progress is checked."""

SLOWEST = 1e-3
"""Least progress in a window, as a share of the remaining work. 10⁷ decisions take minutes."""


def check_cluster(cluster: Cluster) -> None:
    """Raise SpecError for an impossible cluster: no GPUs, an invalid cost, or hosts that do not add up."""
    if cluster.gpus < 1:
        raise SpecError(f"a cluster of {cluster.gpus} GPUs runs nothing", hint="give it at least 1")
    for what, cost_s in (("restart", cluster.restart_s), ("start", cluster.start_s)):
        if not (math.isfinite(cost_s) and cost_s >= 0):
            raise SpecError(f"a {what} of {cost_s} s is not a valid cost")
    if cluster.gpus_per_host is not None:
        each = cluster.gpus_per_host
        if each < 1:
            raise SpecError(f"hosts of {each} GPUs do not make a cluster", hint="give each at least 1")
        if cluster.gpus % each:
            below, above = cluster.gpus // each * each, -(-cluster.gpus // each) * each
            near = f"{below} or {above}" if below else f"{above}"
            raise SpecError(
                f"{cluster.gpus} GPUs are not a whole number of hosts of {each}",
                hint=f"take {near} GPUs, or other hosts",
            )


def check_jobs(jobs: Sequence[Job], cluster: Cluster, *, elastic: bool = False) -> None:
    """Raise SpecError for jobs that this cluster cannot run: too large, unsorted by arrival, or duplicate names.

    A job is too large if it needs more GPUs than there are: those that it requests, or its least under an `elastic`
    policy.
    """
    check_cluster(cluster)
    names: set[str] = set()
    has_several_hosts = cluster.hosts > 1
    before_s = 0.0
    for job in jobs:
        if needed_gpus(job, elastic) > cluster.gpus:
            what = "needs at least" if elastic else "asks for"
            raise SpecError(
                f"job {job.name!r} {what} {needed_gpus(job, elastic)} GPUs, and the cluster has {cluster.gpus}",
                hint=f"give it at least {max(needed_gpus(job, elastic) for job in jobs)}",
            )
        if has_several_hosts and not isinstance(job.speed, PlacedSpeed):
            raise SpecError(f"job {job.name!r} has a speed without data on hosts", hint="jobs.on_hosts gives it one")
        if job.arrival_s < before_s:
            raise SpecError(
                f"job {job.name!r} arrives at {job.arrival_s:g} s, before the job that precedes it",
                hint="sort the trace by arrival",
            )
        if job.name in names:
            raise SpecError(f"two jobs are named {job.name!r}", hint="give each its own name")
        names.add(job.name)
        before_s = job.arrival_s


def needed_gpus(job: Job, elastic: bool) -> int:
    """The fewest GPUs that can serve the job."""
    return job.least if elastic else max(job.gpus, job.least)


def simulate(
    jobs: Sequence[Job],
    policy: Policy,
    cluster: Cluster,
    *,
    moments: bool = False,
    spans: bool = False,
    believed: Cluster | None = None,
    truths: Mapping[str, Callable[[int], float]] | None = None,
) -> Simulated:
    """Simulate a trace to the end of its last job.

    Raises SpecError for jobs that the cluster or the policy cannot serve.

    `believed`: the cluster as the policy knows it, if it differs from `cluster`. `truths`: real speeds of jobs, by
    name, if they differ from those that the policy knows.

    Also raises SpecError if jobs restart again and again without progress. Raises RuntimeError for a policy that grants
    more than there is, makes an invalid grant, or leaves jobs waiting forever.
    """
    check_jobs(jobs, cluster, elastic=policy.elastic)
    policy.begin(believed or cluster, jobs)
    return _Simulation(jobs, policy, cluster, moments, spans, truths or {}).run()


class _Simulation:
    """State of one simulation."""

    def __init__(
        self,
        jobs: Sequence[Job],
        policy: Policy,
        cluster: Cluster,
        moments: bool,
        spans: bool,
        truths: Mapping[str, Callable[[int], float]],
    ) -> None:
        self.jobs, self.policy, self.cluster, self.truths = jobs, policy, cluster, truths
        self.keep_moments, self.keep_spans = moments, spans
        self.result = Simulated(cluster, [])
        self.now_s = 0.0
        self.held = 0
        self.held_by: dict[Holder, dict[int, int]] = {}
        """GPUs of each member, by number, of each gang; a job without a gang is alone."""
        self.active: dict[int, Active] = {}
        self.running = 0
        self.ends: list[tuple[float, int, int, Active]] = []
        """(time, number, version, job). An entry with an outdated version is void."""
        self.useful_s: dict[int, float] = {}
        self.restarting_s: dict[int, float] = {}
        self.since: dict[int, float] = {}
        """Start [s] of the current grant of each job, by number."""
        self.demand = 0
        self.crowding = 0.0
        """Integral of max(1, demand over GPUs) over time."""
        self.crowding_at: dict[int, float] = {}
        self.layout = Layout(cluster) if cluster.hosts > 1 else None
        self.changed: list[Active] = []
        """Jobs to be placed at this instant."""
        self.paces: dict[int, tuple[float, float]] = {}
        """Time [s] of each job's last change of pace, by number, and its pace over that on the fewest hosts."""
        self.idle_decisions = 0
        """Decisions without an arrival or an end in the current window of `_check_progress`."""
        self.left_before: float | None = None
        """Remaining work of all jobs when that window began, in jobs."""

    def run(self) -> Simulated:
        """Simulate to the last completion."""
        arrivals = [Active(job, number, self.truths.get(job.name)) for number, job in enumerate(self.jobs)]
        upcoming = 0
        review_s: float | None = None
        soonest_s = 0.0
        while upcoming < len(arrivals) or self.active:
            next_s = min(
                arrivals[upcoming].job.arrival_s if upcoming < len(arrivals) else math.inf,
                self._next_end_s(),
                review_s if review_s is not None else math.inf,
            )
            if math.isinf(next_s):
                raise RuntimeError(f"{type(self.policy).__name__} leaves {len(self.active)} jobs waiting forever")
            self._advance(max(next_s, soonest_s))
            soonest_s = self.now_s + tolerance_s(self.now_s)
            events_before = upcoming + len(self.result.finished)
            while due(self._next_end_s(), self.now_s):
                self._finish(heapq.heappop(self.ends)[3])
            while upcoming < len(arrivals) and due(arrivals[upcoming].job.arrival_s, self.now_s):
                self._arrive(arrivals[upcoming])
                upcoming += 1
            if events_before == upcoming + len(self.result.finished):
                self._check_progress()
            began = time.perf_counter()
            changes = list(self.policy.decide(self.now_s))
            self.result.deciding_s += time.perf_counter() - began
            self.result.decisions += 1
            self._apply(changes)
            if self.layout is not None:
                self._place(self.layout)
            review_s = self.policy.look_again_s(self.now_s)
            if review_s is not None and review_s <= self.now_s:
                raise RuntimeError(f"{type(self.policy).__name__} would be asked again at once, forever")
            if self.keep_moments:
                waiting = len(self.active) - self.running
                self.result.moments.append(ClusterMoment(self.now_s, self.held, self.running, waiting))
        return self.result

    def _check_progress(self) -> None:
        """Count a decision without an arrival or an end.

        Raises SpecError if a whole window makes hardly any progress.
        """
        self.idle_decisions += 1
        if self.idle_decisions < WINDOW:
            return
        self.idle_decisions = 0
        active = list(self.active.values())
        left = sum(job.remaining(self.now_s) / job.job.work for job in active)
        if self.left_before is not None and self.left_before - left <= SLOWEST * left:
            restarts = sum(job.restarts for job in active)
            raise SpecError(
                f"{type(self.policy).__name__.lower()} does not come to an end: in {WINDOW} decisions no job ended, "
                f"and {len(active)} jobs that have restarted {restarts} times hardly got on",
                hint="lower --restart-cost, or raise the policy's thresholds",
            )
        self.left_before = left

    def _advance(self, to_s: float) -> None:
        self.result.held_gpu_s += self.held * (to_s - self.now_s)
        self.crowding += max(1.0, self.demand / self.cluster.gpus) * (to_s - self.now_s)
        self.now_s = to_s

    def _next_end_s(self) -> float:
        """Time of the next completion. Drops void entries."""
        while self.ends:
            at_s, _, version, job = self.ends[0]
            if job.version == version:
                return at_s
            heapq.heappop(self.ends)
        return math.inf

    def _arrive(self, job: Active) -> None:
        if self.left_before is not None:
            self.left_before += 1.0
        self.active[job.number] = job
        self.demand += job.job.gpus
        self.crowding_at[job.number] = self.crowding
        self.useful_s[job.number] = self.restarting_s[job.number] = 0.0
        self.policy.arrived(job, self.now_s)

    def _finish(self, job: Active) -> None:
        self.idle_decisions, self.left_before = 0, None
        del self.active[job.number]
        self._settle(job)
        began_s = job.began_s
        assert began_s is not None
        self._hold(job, 0)
        self.running -= 1
        self.demand -= job.job.gpus
        lived_s = self.now_s - job.job.arrival_s
        crowded = self.crowding - self.crowding_at.pop(job.number)
        held = job.attained_s(self.now_s)
        job.hold(self.now_s, 0, 1.0, None, self.now_s)
        if self.layout is not None:
            self.changed.append(job)
        self.result.finished.append(
            Finished(
                job.job, began_s, self.now_s, job.restarts, held, self.useful_s.pop(job.number),
                self.restarting_s.pop(job.number), crowded / lived_s if lived_s > 0 else 1.0,
            )
        )  # fmt: skip
        self.policy.finished(job, self.now_s)

    def _settle(self, job: Active) -> None:
        """Account for a job's time since its grant last changed."""
        since_s = self.since.pop(job.number)
        computed_s = max(0.0, self.now_s - max(since_s, job.ready_s))
        self.useful_s[job.number] += job.gpus * job.rate * computed_s
        self.restarting_s[job.number] += job.gpus * (self.now_s - since_s - computed_s)
        hosts: Placed = ()
        if self.layout is not None:
            hosts = self.layout.at(job)
            self._book_pace(job)
            if len({host for host, _ in hosts}) > 1:
                self.result.across_gpu_s += job.gpus * (self.now_s - since_s)
        if self.keep_spans and self.now_s > since_s:
            self.result.spans.append(Span(job.job.name, job.gpus, since_s, self.now_s, job.gang, hosts))

    def _book_pace(self, job: Active) -> None:
        """Account for the effect of placement since a job's pace last changed."""
        since_s, share = self.paces.pop(job.number)
        computed_s = max(0.0, self.now_s - max(since_s, job.ready_s))
        self.result.lost_gpu_s += (1 - share) * job.gpus * job.rate * computed_s

    def _place(self, layout: Layout) -> None:
        """Place the jobs of this instant on hosts, and change the pace of all jobs that this affects."""
        for job, speed in layout.update(self.changed):
            if job.number in self.paces:
                self._book_pace(job)
            self.paces[job.number] = (self.now_s, speed / job.job.speed(job.gpus))
            job.pace(self.now_s, speed)
            heapq.heappush(self.ends, (job.finish_s(self.now_s), job.number, job.version, job))
        self.changed.clear()

    def _apply(self, changes: Iterable[Change]) -> None:
        """Apply the changes. Stops and shrinks come first, so that the freed GPUs can be granted."""
        for job, grant in sorted(changes, key=lambda change: change[1].gpus - change[0].gpus):
            if (job.gpus, job.rate, job.gang) == (grant.gpus, grant.rate, grant.gang):
                continue
            if grant.gpus < 0 or not 0 < grant.rate <= 1:
                raise RuntimeError(f"{type(self.policy).__name__} granted {grant} to job {job.job.name!r}")
            if job.gpus:
                self._settle(job)
                self._hold(job, 0)
            ready_s = self.now_s + (self.cluster.start_s if grant.gpus else 0.0)
            if grant.gpus and job.began_s is not None:
                moved = grant.gpus != job.gpus
                ready_s = self.now_s + self.cluster.restart_s if moved else max(self.now_s, job.ready_s)
                job.restarts += moved
            self.running += bool(grant.gpus) - bool(job.gpus)
            job.hold(self.now_s, grant.gpus, grant.rate, grant.gang, ready_s)
            if self.layout is not None:
                self.changed.append(job)
            if grant.gpus:
                if job.began_s is None:
                    job.began_s = self.now_s
                self._hold(job, job.gpus)
                self.since[job.number] = self.now_s
                if self.layout is None:
                    heapq.heappush(self.ends, (job.finish_s(self.now_s), job.number, job.version, job))
        if self.held > self.cluster.gpus:
            raise RuntimeError(
                f"{type(self.policy).__name__} granted {self.held} GPUs at {self.now_s:g} s, and there are "
                f"{self.cluster.gpus}"
            )

    def _hold(self, job: Active, gpus: int) -> None:
        """Count `gpus` GPUs of a job as held: those of its gang once, as wide as the widest member."""
        holder = holder_of(job)
        members = self.held_by.setdefault(holder, {})
        before = max(members.values(), default=0)
        members.pop(job.number, None)
        if gpus:
            members[job.number] = gpus
        self.result.shared |= len(members) > 1
        self.held += max(members.values(), default=0) - before
        if not members:
            del self.held_by[holder]
