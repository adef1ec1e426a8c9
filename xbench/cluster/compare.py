"""Several policies on one trace, at several restart costs and seeds: every combination simulated, and what it says.

Seeds are pairs: every policy meets the same jobs, so policies are compared by the ratio of their mean job completion
times seed by seed, with the exact signed-rank estimate and interval that the CI gate uses (`stats.regression`). A trace
from a file is what it is: one run, no interval, and its ratios hold for it alone.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import numpy as np

from xbench.cluster.metrics import metrics
from xbench.cluster.policy import Cluster, Policy
from xbench.cluster.registry import parse_policy
from xbench.cluster.simulator import Moment, Simulated, check_jobs, simulate
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
)
from xbench.stats.regression import signed_rank
from xbench.units import format_duration, format_percent

WINDOWS = 300
"""Of a curve over time."""

DRAWN_JOBS = 200
"""A Gantt chart of more can be read by nobody."""

DRAWN_SPANS = 5000
CLEAR = 0.01
"""Two policies that are closer than this share of the mean are not told apart in words."""


@dataclass(frozen=True)
class Asked:
    """What is to be compared. `trace(seed)` makes the jobs; `seeds` is (None,) for a trace that has none."""

    text: str
    trace: Callable[[int | None], Trace]
    seeds: tuple[int | None, ...]
    policies: tuple[str, ...]
    gpus: int
    restart_costs_s: tuple[float, ...] = (0.0,)


def compare(asked: Asked, command: str, say: Callable[[str], None]) -> ClusterComparison:
    """Simulate every combination. Raises SpecError, before the first, for what the cluster or a policy cannot serve."""
    traces = {seed: asked.trace(seed) for seed in asked.seeds}
    first = traces[asked.seeds[0]]
    for trace in traces.values():
        for cost_s in asked.restart_costs_s:
            check_jobs(trace.jobs, Cluster(asked.gpus, cost_s))
        for name in asked.policies:
            parse_policy(name).begin(Cluster(asked.gpus), trace.jobs)
    runs: list[ClusterRun] = []
    curves: list[ClusterCurve] = []
    spans: list[ClusterSpan] = []
    total = len(asked.policies) * len(asked.restart_costs_s)
    seeds = f", {len(asked.seeds)} seeds" if len(asked.seeds) > 1 else ""
    for name in asked.policies:
        for cost_s in asked.restart_costs_s:
            say(f"{len(runs) // len(asked.seeds) + 1} of {total}: {name}, restarts of {cost_s:g} s{seeds}")
            for seed, trace in traces.items():
                drawn = trace is first
                simulated = _run(parse_policy(name), trace, Cluster(asked.gpus, cost_s), drawn)
                found = metrics(simulated)._asdict()
                runs.append(ClusterRun(policy=name, restart_s=cost_s, seed=seed, **found))
                if drawn:
                    curves.append(_curve(name, cost_s, simulated))
                    spans += _spans(name, simulated) if cost_s == asked.restart_costs_s[0] else []
    results = _results(asked, runs)
    return ClusterComparison(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        xbench=metadata.version("xbench"),
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
        findings=_findings(asked, results),
        warnings=_warnings(first),
        runs=runs,
        results=results,
        curves=curves,
        spans=spans if len(spans) <= DRAWN_SPANS else [],
    )


def _run(policy: Policy, trace: Trace, cluster: Cluster, drawn: bool) -> Simulated:
    return simulate(trace.jobs, policy, cluster, moments=drawn, spans=drawn and len(trace.jobs) <= DRAWN_JOBS)


def _curve(policy: str, restart_s: float, simulated: Simulated) -> ClusterCurve:
    jct_s = np.percentile([job.jct_s for job in simulated.finished], range(101))
    at_s, held, waiting = thinned(simulated.moments, WINDOWS)
    return ClusterCurve(
        policy=policy, restart_s=restart_s, jct_s=[float(value) for value in jct_s], at_s=at_s, held=held,
        waiting=waiting,
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


def _spans(policy: str, simulated: Simulated) -> list[ClusterSpan]:
    return [
        ClusterSpan(policy=policy, job=span.job, gpus=span.gpus, from_s=span.from_s, to_s=span.to_s)
        for span in simulated.spans
    ]


def _results(asked: Asked, runs: Sequence[ClusterRun]) -> list[ClusterResult]:
    """Per policy and restart cost, against the reference at the same cost."""
    means = {(run.policy, run.restart_s, run.seed): run.jct_mean_s for run in runs}
    reference = asked.policies[0]
    results = []
    for name in asked.policies:
        for cost_s in asked.restart_costs_s:
            own = [means[name, cost_s, seed] for seed in asked.seeds]
            over = [math.log(means[name, cost_s, seed] / means[reference, cost_s, seed]) for seed in asked.seeds]
            value, interval = _estimate([math.log(mean) for mean in own])
            ratio, ratio_interval = _estimate(over)
            results.append(
                ClusterResult(
                    policy=name,
                    restart_s=cost_s,
                    jct_mean_s=value,
                    jct_mean_ci95=interval,
                    ratio=ratio if name != reference else None,
                    ratio_ci95=ratio_interval if name != reference else None,
                )
            )
    return results


def _estimate(logs: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    test = signed_rank(logs)
    interval = None if test.interval is None else (math.exp(test.interval[0]), math.exp(test.interval[1]))
    return math.exp(test.center), interval


def _findings(asked: Asked, results: Sequence[ClusterResult]) -> list[str]:
    """The best policy at each restart cost, in words."""
    said = []
    for cost_s in asked.restart_costs_s:
        here = sorted((one for one in results if one.restart_s == cost_s), key=lambda one: one.jct_mean_s)
        best = here[0]
        at = f" with restarts of {cost_s:g} s" if len(asked.restart_costs_s) > 1 else ""
        shortest = f"{best.policy} has the shortest mean job completion time{at}: {format_duration(best.jct_mean_s)}"
        if len(here) == 1:
            said.append(f"The mean job completion time under {best.policy}{at}: {format_duration(best.jct_mean_s)}.")
            continue
        close = [one.policy for one in here[1:] if one.jct_mean_s < (1 + CLEAR) * best.jct_mean_s]
        if close:
            said.append(f"{shortest}, and {', '.join(close)} within {format_percent(CLEAR)} of it.")
        elif best.ratio is not None:
            said.append(f"{shortest}, {format_percent(1 - best.ratio)} less than {asked.policies[0]}'s{_sure(best)}.")
        else:
            second = here[1]
            said.append(f"{shortest}; {second.policy} is next with {format_duration(second.jct_mean_s)}.")
    return said


def _sure(result: ClusterResult) -> str:
    if result.ratio_ci95 is None:
        return ""
    low, high = result.ratio_ci95
    return f" (ratio {result.ratio:.3f}, 95 % CI {low:.3f} to {high:.3f} over seeds)"


def _warnings(trace: Trace) -> list[str]:
    count = len(trace.skipped)
    left = "row of the trace made no job and was" if count == 1 else "rows of the trace made no jobs and were"
    return [f"{count} {left} left out; the first: {trace.skipped[0]}"] if count else []


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
    if not isinstance(record, Restart):
        hint = "xbench cluster restart --json FILE makes one"
        raise RecordError(f"{text} is a {record.kind} record, which measured no restart", hint=hint)
    return round(record.cost_s, 3)
