"""Several policies on one trace, at several restart costs, placements and seeds: every combination simulated.

Seeds are pairs: every policy meets the same jobs, so policies are compared by the ratio of their mean job completion
times seed by seed, with the exact signed-rank estimate and interval that the CI gate uses (`stats.regression`). A trace
from a file is what it is: one run, no interval, and its ratios hold for it alone.

Averages may be taken over some of the jobs alone (`steady`). Where the queue still grows when the last job comes, a
warning says so, and no policy is headlined by its ratio to a reference that is growing.

Each mean is also told as a gap over what no schedule beats (`bounds`): the exact optimum where the trace is small
enough to find it, else a lower bound, and then the gap is at most that. Both are of schedules that share no GPU, so a
policy that shares some has none; nor is there a bound of a window of jobs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xbench.cluster.bounds import Bound, bound
from xbench.cluster.findings import findings, growth_warnings
from xbench.cluster.hosts import on_hosts
from xbench.cluster.metrics import metrics
from xbench.cluster.policy import Cluster, Placement, Policy
from xbench.cluster.registry import parse_policy
from xbench.cluster.simulated import Moment, Simulated
from xbench.cluster.simulator import check_cluster, check_jobs, simulate
from xbench.cluster.steady import Window, check_window, grows
from xbench.cluster.traces import Trace
from xbench.errors import RecordError, SpecError
from xbench.records import (
    ClusterComparison,
    ClusterCurve,
    ClusterResult,
    ClusterRun,
    ClusterSpan,
    Restart,
    TraceRecord,
    load,
    of_kind,
)
from xbench.stats.regression import signed_rank
from xbench.version import __version__

WINDOWS = 300
"""Of a curve over time."""

DRAWN_JOBS = 200
"""A Gantt chart of more can be read by nobody."""

DRAWN_SPANS = 5000
ROUNDING = 1e-6
"""A share of a bound below which a gap is nothing but rounding."""


@dataclass(frozen=True)
class Asked:
    """What is to be compared. `trace(seed)` makes the jobs; `seeds` is (None,) for a trace that has none.

    `placements` are for a cluster of several hosts; `across_hosts`: see `hosts.on_hosts`; `window`: see `steady`.
    """

    text: str
    trace: Callable[[int | None], Trace]
    seeds: tuple[int | None, ...]
    policies: tuple[str, ...]
    gpus: int
    restart_costs_s: tuple[float, ...] = (0.0,)
    gpus_per_host: int | None = None
    placements: tuple[Placement, ...] = ("packed",)
    across_hosts: float | None = None
    window: Window | None = None

    @property
    def ways(self) -> list[Way]:
        """Every combination, policies first."""
        placements = self.placements if self.gpus_per_host is not None else (None,)
        return [
            Way(policy, cost_s, placement)
            for policy in self.policies
            for cost_s in self.restart_costs_s
            for placement in placements
        ]

    def cluster(self, restart_s: float = 0.0, placement: Placement | None = None) -> Cluster:
        """One of those that are simulated."""
        return Cluster(self.gpus, restart_s, self.gpus_per_host, placement or self.placements[0])


class Way(NamedTuple):
    """One combination, but for the seed."""

    policy: str
    restart_s: float
    placement: Placement | None

    def __str__(self) -> str:
        placed = f", {self.placement}" if self.placement else ""
        return f"{self.policy}, restarts of {self.restart_s:g} s{placed}"


def compare(asked: Asked, command: str, say: Callable[[str], None]) -> ClusterComparison:
    """Simulate every combination. Raises SpecError, before the first, for what the cluster or a policy cannot serve."""
    traces = _traces(asked)
    first = traces[asked.seeds[0]]
    bounds = {seed: bound(trace.jobs, asked.cluster()) for seed, trace in traces.items()} if not asked.window else {}
    runs: list[ClusterRun] = []
    curves: list[ClusterCurve] = []
    spans: list[ClusterSpan] = []
    ways = asked.ways
    seeds = f", {len(asked.seeds)} seeds" if len(asked.seeds) > 1 else ""
    for number, way in enumerate(ways):
        say(f"{number + 1} of {len(ways)}: {way}{seeds}")
        for seed, trace in traces.items():
            drawn = trace is first
            cluster = asked.cluster(way.restart_s, way.placement)
            simulated = _run(parse_policy(way.policy), trace, cluster, drawn)
            counted = _counted(trace, asked.window)
            found = metrics(simulated, counted)._asdict() | _bounded(bounds.get(seed), simulated)
            runs.append(ClusterRun(**way._asdict(), seed=seed, **found))
            if drawn:
                curves.append(_curve(way, simulated, counted))
                spans += _spans(way, simulated) if way[1:] == ways[0][1:] else []
    results = _results(asked, runs)
    return ClusterComparison(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        xbench=__version__,
        trace=TraceRecord(
            asked=asked.text,
            name=first.name,
            jobs=len(first.jobs),
            gpu_hours=first.gpu_hours,
            span_s=first.span_s,
            seeds=[seed for seed in asked.seeds if seed is not None],
            skipped=[str(row) for row in first.skipped],
            notes=list(first.notes),
        ),
        gpus=asked.gpus,
        policies=list(asked.policies),
        restart_costs_s=list(asked.restart_costs_s),
        gpus_per_host=asked.gpus_per_host,
        placements=list(asked.placements) if asked.gpus_per_host is not None else [],
        across_hosts=asked.across_hosts,
        window=asked.window,
        findings=findings(results),
        warnings=[*_warnings(first, bounds.values()), *growth_warnings(results, runs)],
        runs=runs,
        results=results,
        curves=curves,
        spans=spans if len(spans) <= DRAWN_SPANS else [],
    )


def _traces(asked: Asked) -> dict[int | None, Trace]:
    """By seed, with speeds that know of hosts where there are several; checked against the cluster and all policies."""
    check_cluster(asked.cluster())
    if asked.gpus_per_host is not None and asked.gpus_per_host == asked.gpus:
        raise SpecError(
            f"{asked.gpus} GPUs on hosts of {asked.gpus_per_host} are one host, on which there is nothing to place",
            hint="leave --gpus-per-host out, or take smaller hosts",
        )
    traces = {}
    for seed in asked.seeds:
        trace = asked.trace(seed)
        if asked.gpus_per_host is not None:
            trace = replace(trace, jobs=on_hosts(trace.jobs, asked.gpus_per_host, asked.across_hosts))
        for name in asked.policies:
            policy = parse_policy(name)
            for cost_s in asked.restart_costs_s:
                check_jobs(trace.jobs, asked.cluster(cost_s), elastic=policy.elastic)
            policy.begin(asked.cluster(), trace.jobs)
        if asked.window is not None:
            check_window(asked.window, len(trace.jobs))
        traces[seed] = trace
    return traces


def _counted(trace: Trace, window: Window | None) -> frozenset[str] | None:
    """The names of the jobs that count; None for all."""
    return None if window is None else frozenset(job.name for job in trace.jobs[window[0] - 1 : window[1]])


def _bounded(found: Bound | None, simulated: Simulated) -> dict[str, Any]:
    if found is None or simulated.shared:
        return {}
    return {"bound_s": found.jct_mean_s, "bound_exact": found.exact}


def _run(policy: Policy, trace: Trace, cluster: Cluster, drawn: bool) -> Simulated:
    return simulate(trace.jobs, policy, cluster, moments=drawn, spans=drawn and len(trace.jobs) <= DRAWN_JOBS)


def _curve(way: Way, simulated: Simulated, counted: frozenset[str] | None) -> ClusterCurve:
    jobs = [one for one in simulated.finished if counted is None or one.job.name in counted]
    jct_s = np.percentile([job.jct_s for job in jobs], range(101))
    at_s, held, waiting = thinned(simulated.moments, WINDOWS)
    return ClusterCurve(
        **way._asdict(), jct_s=[float(value) for value in jct_s], at_s=at_s, held=held, waiting=waiting,
    )  # fmt: skip


def thinned(moments: Sequence[Moment], windows: int) -> tuple[list[float], list[float], list[float]]:
    """Middles of equal windows [s], and the means of GPUs held and of jobs waiting in each, integrated exactly."""
    at_s = np.array([moment.at_s for moment in moments])
    if len(at_s) < 2 or at_s[-1] <= at_s[0]:
        return [], [], []
    edges = np.linspace(at_s[0], at_s[-1], windows + 1)
    found = []
    for values in ([moment.held for moment in moments], [moment.waiting for moment in moments]):
        area = np.concatenate([[0.0], np.cumsum(np.array(values[:-1], dtype=float) * np.diff(at_s))])
        found.append(np.diff(np.interp(edges, at_s, area)) / np.diff(edges))
    middles = (edges[:-1] + edges[1:]) / 2
    held, waiting = ([float(value) for value in one] for one in found)
    return [float(value) for value in middles], held, waiting


def _spans(way: Way, simulated: Simulated) -> list[ClusterSpan]:
    return [
        ClusterSpan(policy=way.policy, job=span.job, gpus=span.gpus, from_s=span.from_s, to_s=span.to_s)
        for span in simulated.spans
    ]


def _results(asked: Asked, runs: Sequence[ClusterRun]) -> list[ClusterResult]:
    """Per combination, against the reference at the same cost and placement, the bound, and the first placement."""
    of = {(Way(run.policy, run.restart_s, run.placement), run.seed): run for run in runs}
    results = []
    for way in asked.ways:
        own = [of[way, seed] for seed in asked.seeds]
        logs = [math.log(run.jct_mean_s) for run in own]
        value, interval = _estimate(logs)
        found: dict[str, Any] = {"jct_mean_s": value, "jct_mean_ci95": interval}
        for name, base in (
            ("ratio", way._replace(policy=asked.policies[0])),
            ("placed_ratio", way._replace(placement=asked.placements[0] if way.placement else None)),
        ):
            if base != way:
                over = [one - math.log(of[base, seed].jct_mean_s) for one, seed in zip(logs, asked.seeds, strict=True)]
                found[name], found[f"{name}_ci95"] = _estimate(over)
        bounds_s = [run.bound_s for run in own if run.bound_s]
        if len(bounds_s) == len(own):
            times, ends = _estimate([one - math.log(least_s) for one, least_s in zip(logs, bounds_s, strict=True)])
            found |= {"gap": _gap(times), "gap_exact": all(run.bound_exact for run in own)}
            found["gap_ci95"] = ends and (_gap(ends[0]), _gap(ends[1]))
        growing = grows([run.unfinished_middle or 0.0 for run in own], [run.unfinished_end or 0.0 for run in own])
        results.append(ClusterResult(**way._asdict(), **found, growing=growing))
    return results


def _gap(times: float) -> float:
    """Over a bound, without the rounding of a linear program."""
    return times - 1 if abs(times - 1) > ROUNDING else 0.0


def _estimate(logs: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    test = signed_rank(logs)
    interval = None if test.interval is None else (math.exp(test.interval[0]), math.exp(test.interval[1]))
    return math.exp(test.center), interval


def _warnings(trace: Trace, bounds: Iterable[Bound | None]) -> list[str]:
    count = len(trace.skipped)
    left = "row of the trace made no job and was" if count == 1 else "rows of the trace made no jobs and were"
    said = [f"{count} {left} left out; the first: {trace.skipped[0]}"] if count else []
    if None in bounds:
        said.append("no gap is told: a bound of so many different speeds and sizes would take too long")
    return said


MOST_COST_S = 1e9


def parse_costs(text: str) -> tuple[float, ...]:
    """Seconds from '0,10,30', where a record of `xbench cluster restart` may stand for what it measured.

    Raises SpecError, and RecordError for a file that is no such record.
    """
    found = []
    for part in text.split(","):
        try:
            cost_s = float(part)
        except ValueError:
            cost_s = _measured_cost_s(part.strip())
        if not (math.isfinite(cost_s) and cost_s >= 0):
            raise SpecError(f"{part.strip()!r} is no number of seconds", hint="write 0,10,30")
        if cost_s > MOST_COST_S:
            raise SpecError(f"{cost_s:g} s is more than a restart can cost", hint="write 0,10,30")
        if cost_s in found:
            raise SpecError(f"{part.strip()} stands twice", hint="write each cost once")
        found.append(cost_s)
    return tuple(found)


def _measured_cost_s(text: str) -> float:
    """What a record says that a restart costs, to the millisecond."""
    if not (text.endswith(".json") or os.sep in text or Path(text).is_file()):
        hint = "write 0,10,30, or the file of xbench cluster restart --json FILE"
        raise SpecError(f"{text!r} is no number of seconds", hint=hint)
    record = load(Path(text))
    restart = of_kind(record, Restart)
    if restart is None:
        hint = "xbench cluster restart --json FILE makes one"
        raise RecordError(f"{text} is a {record.kind} record, which measured no restart", hint=hint)
    return round(restart.cost_s, 3)
