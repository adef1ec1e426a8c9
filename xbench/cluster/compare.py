"""Comparison of policies on one trace: every combination of policy, restart cost, placement and seed is simulated.

Seeds are paired: every policy gets the same jobs. The statistic is the ratio of mean job completion times seed by seed,
with the exact signed-rank estimate and interval that the CI gate uses (`stats.regression`). A trace from a file gives
one run without an interval; its ratios hold for that trace alone.

Averages may cover only some jobs (`metrics`). A warning appears if the queue still grows when the last job comes,
and then no policy is headlined by its ratio to a growing reference.

Each mean also has a gap over a lower bound of what any schedule without shared GPUs can reach (`bounds`); the true gap
is smaller. So neither a policy that shares GPUs nor a window of jobs has a gap.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from xbench import records
from xbench.cluster.bounds import bound_s
from xbench.cluster.jobs import on_hosts
from xbench.cluster.metrics import ClusterMoment, Simulated, Window, check_window, grows, metrics
from xbench.cluster.policies import parse_policy
from xbench.cluster.policy import Cluster, Placement
from xbench.cluster.simulator import check_cluster, check_jobs, simulate
from xbench.cluster.traces import Trace
from xbench.errors import RecordError, SpecError
from xbench.record_files import now
from xbench.stats.regression import signed_rank
from xbench.units import format_duration, format_percent
from xbench.version import __version__

WINDOWS = 300
"""Points of a curve over time."""

DRAWN_JOBS = 200
"""Largest number of jobs in a readable Gantt chart."""

DRAWN_SPANS = 5000
MAX_COST_S = 1e9
MEASURES = "xbench cluster run JOBS.toml --restarts 6 --json FILE"
ROUNDING = 1e-6
"""Share of a bound below which a gap is only rounding."""

CLEAR = 0.01
"""Share of the mean below which a difference between two policies is not mentioned."""


@dataclass(frozen=True)
class ComparisonRequest:
    """A comparison to make. `trace(seed)` makes the jobs; `seeds` is (None,) for a trace without seeds.

    `placements` need a cluster of several hosts. `jobs` describes `across_hosts`, and `metrics` describes `window`.
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
    def scenarios(self) -> list[Scenario]:
        """Every combination, policies first."""
        placements = self.placements if self.gpus_per_host is not None else (None,)
        return [
            Scenario(policy, cost_s, placement)
            for policy in self.policies
            for cost_s in self.restart_costs_s
            for placement in placements
        ]

    def cluster(self, restart_s: float = 0.0, placement: Placement | None = None) -> Cluster:
        """One of the simulated clusters."""
        return Cluster(self.gpus, restart_s, self.gpus_per_host, placement or self.placements[0])


class Scenario(NamedTuple):
    """One combination without its seed."""

    policy: str
    restart_s: float
    placement: Placement | None

    def __str__(self) -> str:
        placed = f", {self.placement}" if self.placement else ""
        return f"{self.policy}, restarts of {self.restart_s:g} s{placed}"


def compare(request: ComparisonRequest, command: str, report: Callable[[str], None]) -> records.ClusterComparison:
    """Simulate every combination. Raises SpecError, before the first, if one cannot serve the trace."""
    traces = _traces(request)
    first = traces[request.seeds[0]]
    bounds: dict[int | None, float | None] = {}
    if request.window is None:
        bounds = {seed: bound_s(trace.jobs, request.cluster()) for seed, trace in traces.items()}
    runs, curves, spans = _simulated(request, traces, bounds, report)
    results = _results(request, runs)
    return records.ClusterComparison(
        created=now(),
        command=command,
        xbench=__version__,
        trace=records.TraceRecord(
            asked=request.text,
            name=first.name,
            jobs=len(first.jobs),
            gpu_hours=first.gpu_hours,
            span_s=first.span_s,
            seeds=[seed for seed in request.seeds if seed is not None],
            skipped=[str(row) for row in first.skipped],
            notes=list(first.notes),
        ),
        gpus=request.gpus,
        policies=list(request.policies),
        restart_costs_s=list(request.restart_costs_s),
        gpus_per_host=request.gpus_per_host,
        placements=list(request.placements) if request.gpus_per_host is not None else [],
        across_hosts=request.across_hosts,
        window=request.window,
        findings=findings(results),
        warnings=[*_warnings(first, bounds.values()), *growth_warnings(results, runs)],
        runs=runs,
        results=results,
        curves=curves,
        spans=spans if len(spans) <= DRAWN_SPANS else [],
    )


def _traces(request: ComparisonRequest) -> dict[int | None, Trace]:
    """Traces by seed, checked against the cluster and all policies. On several hosts, their speeds know of hosts."""
    check_cluster(request.cluster())
    if request.gpus_per_host is not None and request.gpus_per_host == request.gpus:
        raise SpecError(
            f"{request.gpus} GPUs on hosts of {request.gpus_per_host} are one host, on which there is nothing to place",
            hint="leave --gpus-per-host out, or take smaller hosts",
        )
    traces = {}
    for seed in request.seeds:
        trace = request.trace(seed)
        if request.gpus_per_host is not None:
            trace = replace(trace, jobs=on_hosts(trace.jobs, request.gpus_per_host, request.across_hosts))
        for name in request.policies:
            policy = parse_policy(name)
            for cost_s in request.restart_costs_s:
                check_jobs(trace.jobs, request.cluster(cost_s), elastic=policy.elastic)
            policy.begin(request.cluster(), trace.jobs)
        if request.window is not None:
            check_window(request.window, len(trace.jobs))
        traces[seed] = trace
    return traces


def _simulated(
    request: ComparisonRequest,
    traces: Mapping[int | None, Trace],
    bounds: Mapping[int | None, float | None],
    report: Callable[[str], None],
) -> tuple[list[records.ClusterRun], list[records.ClusterCurve], list[records.ClusterSpan]]:
    """All simulations; curves of the first trace, and spans of its first restart cost and placement."""
    runs, curves, spans = [], [], []
    scenarios = request.scenarios
    seeds = f", {len(traces)} seeds" if len(traces) > 1 else ""
    for number, scenario in enumerate(scenarios):
        report(f"{number + 1} of {len(scenarios)}: {scenario}{seeds}")
        for seed, trace in traces.items():
            is_drawn = seed == request.seeds[0]
            is_small = len(trace.jobs) <= DRAWN_JOBS
            policy, cluster = parse_policy(scenario.policy), request.cluster(scenario.restart_s, scenario.placement)
            simulated = simulate(trace.jobs, policy, cluster, moments=is_drawn, spans=is_drawn and is_small)
            first, last = request.window or (1, len(trace.jobs))
            counted = frozenset(job.name for job in trace.jobs[first - 1 : last])
            runs.append(metrics(simulated, counted, policy=scenario.policy, seed=seed, bound_s=bounds.get(seed)))
            if is_drawn:
                curves.append(_curve(scenario, simulated, counted))
            if is_drawn and scenario[1:] == scenarios[0][1:]:
                spans += [
                    records.ClusterSpan(
                        policy=scenario.policy, job=span.job, gpus=span.gpus, from_s=span.from_s, to_s=span.to_s
                    )
                    for span in simulated.spans
                ]
    return runs, curves, spans


def _curve(scenario: Scenario, simulated: Simulated, counted: frozenset[str]) -> records.ClusterCurve:
    jct_s = np.percentile([job.jct_s for job in simulated.finished if job.job.name in counted], range(101)).tolist()
    at_s, held, waiting = thinned(simulated.moments, WINDOWS)
    return records.ClusterCurve(**scenario._asdict(), jct_s=jct_s, at_s=at_s, held=held, waiting=waiting)


def thinned(moments: Sequence[ClusterMoment], windows: int) -> tuple[list[float], list[float], list[float]]:
    """Middles of equal windows [s], and the exact mean numbers of held GPUs and of waiting jobs in each."""
    at_s = np.array([moment.at_s for moment in moments])
    if len(at_s) < 2 or at_s[-1] <= at_s[0]:
        return [], [], []
    edges = np.linspace(at_s[0], at_s[-1], windows + 1)
    means = []
    for values in ([moment.held for moment in moments], [moment.waiting for moment in moments]):
        area = np.concatenate([[0.0], np.cumsum(np.array(values[:-1], dtype=float) * np.diff(at_s))])
        means.append((np.diff(np.interp(edges, at_s, area)) / np.diff(edges)).tolist())
    return ((edges[:-1] + edges[1:]) / 2).tolist(), means[0], means[1]


def _results(request: ComparisonRequest, runs: Sequence[records.ClusterRun]) -> list[records.ClusterResult]:
    """Each combination against the reference at its cost and placement, against the bound, and the first placement."""
    by_scenario = {(Scenario(run.policy, run.restart_s, run.placement), run.seed): run for run in runs}
    results = []
    for scenario in request.scenarios:
        scenario_runs = [by_scenario[scenario, seed] for seed in request.seeds]
        logs = [math.log(run.jct_mean_s) for run in scenario_runs]
        value, interval = _estimate(logs)
        values: dict[str, Any] = {"jct_mean_s": value, "jct_mean_ci95": interval}
        for name, base in (
            ("ratio", scenario._replace(policy=request.policies[0])),
            ("placed_ratio", scenario._replace(placement=request.placements[0] if scenario.placement else None)),
        ):
            if base != scenario:
                differences = [
                    log - math.log(by_scenario[base, seed].jct_mean_s)
                    for log, seed in zip(logs, request.seeds, strict=True)
                ]
                values[name], values[f"{name}_ci95"] = _estimate(differences)
        bounds_s = [run.bound_s for run in scenario_runs if run.bound_s]
        if len(bounds_s) == len(scenario_runs):
            times, ends = _estimate([log - math.log(least_s) for log, least_s in zip(logs, bounds_s, strict=True)])
            values |= {"gap": _gap(times), "gap_ci95": ends and (_gap(ends[0]), _gap(ends[1]))}
        growing = grows(
            [run.unfinished_middle or 0.0 for run in scenario_runs],
            [run.unfinished_end or 0.0 for run in scenario_runs],
        )
        results.append(records.ClusterResult(**scenario._asdict(), **values, growing=growing))
    return results


def _gap(times: float) -> float:
    """Gap from a ratio to a bound, without its rounding."""
    return times - 1 if abs(times - 1) > ROUNDING else 0.0


def _estimate(logs: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    test = signed_rank(logs)
    interval = None if test.interval is None else (math.exp(test.interval[0]), math.exp(test.interval[1]))
    return math.exp(test.center), interval


def _warnings(trace: Trace, bounds: Collection[float | None]) -> list[str]:
    count = len(trace.skipped)
    ending = "row of the trace made no job and was" if count == 1 else "rows of the trace made no jobs and were"
    warnings = [f"{count} {ending} left out; the first: {trace.skipped[0]}"] if count else []
    if None in bounds:
        warnings.append("no gap is given: a bound of so many different speeds and sizes would take too long")
    return warnings


def parse_costs(text: str) -> tuple[float, ...]:
    """Costs [s] from '0,10,30'. A record of `xbench cluster run` may stand for the cost that it measured.

    Raises SpecError for invalid text, and RecordError for a file that is no such record.
    """
    costs_s = []
    for part in text.split(","):
        try:
            cost_s = float(part)
        except ValueError:
            cost_s = _measured_cost_s(part.strip())
        if not (math.isfinite(cost_s) and cost_s >= 0):
            raise SpecError(f"{part.strip()!r} is not a number of seconds", hint="write 0,10,30")
        if cost_s > MAX_COST_S:
            raise SpecError(f"{cost_s:g} s is more than a restart can cost", hint="write 0,10,30")
        if cost_s in costs_s:
            raise SpecError(f"{part.strip()} stands twice", hint="write each cost once")
        costs_s.append(cost_s)
    return tuple(costs_s)


def _measured_cost_s(text: str) -> float:
    """Restart cost [s] from a record, to the millisecond."""
    if not (text.endswith(".json") or os.sep in text or Path(text).is_file()):
        hint = f"write 0,10,30, or the file of {MEASURES}"
        raise SpecError(f"{text!r} is not a number of seconds", hint=hint)
    record = records.load(Path(text))
    run = records.of_kind(record, records.LiveRun)
    if run is None or run.overhead_s is None:
        raise RecordError(f"{text} is a {record.kind} record, which measured no restart", hint=f"{MEASURES} makes one")
    return round(run.overhead_s, 3)


def findings(results: Sequence[records.ClusterResult]) -> list[str]:
    """The conclusions, the answer first. `results` are in the order of policies, restart costs and placements."""
    conditions = list(dict.fromkeys((result.restart_s, result.placement) for result in results))
    costs = {restart_s for restart_s, _ in conditions}
    placements = {placement for _, placement in conditions}
    sentences = []
    for restart_s, placement in conditions:
        matching = [result for result in results if (result.restart_s, result.placement) == (restart_s, placement)]
        condition = f" with restarts of {restart_s:g} s" if len(costs) > 1 else ""
        condition += f" when {placement}" if len(placements) > 1 else ""
        sentences.append(_best(matching, condition))
    first = [result for result in results if (result.restart_s, result.placement) == conditions[0]]
    best = min(first, key=lambda result: result.jct_mean_s)
    if best.gap is not None:
        sentences.insert(1, f"{best.policy} is {above(best)}.")
    return sentences + _placed(results)


def _best(results: Sequence[records.ClusterResult], condition: str) -> str:
    """Sentence on the best policy at one restart cost and placement."""
    ranked = sorted(results, key=lambda result: result.jct_mean_s)
    best, reference = ranked[0], results[0].policy
    took = format_duration(best.jct_mean_s)
    if len(ranked) == 1:
        return f"The mean job completion time under {best.policy}{condition}: {took}."
    shortest = f"{best.policy} has the shortest mean job completion time{condition}: {took}"
    close = [result.policy for result in ranked[1:] if result.jct_mean_s < (1 + CLEAR) * best.jct_mean_s]
    if close:
        return f"{shortest}, and {', '.join(close)} within {format_percent(CLEAR)} of it."
    if any(result.policy == reference and result.growing for result in ranked):
        return f"{shortest}; no ratio is headlined, because the queue under {reference}, the reference, still grows."
    if best.ratio is not None:
        shorter = f"{shortest}, {format_percent(1 - best.ratio)} less than {reference}'s"
        if best.ratio_ci95 is None:
            return f"{shorter}."
        low, high = best.ratio_ci95
        return f"{shorter} (ratio {best.ratio:.3f}, 95 % CI {low:.3f} to {high:.3f} over seeds)."
    return f"{shortest}; {ranked[1].policy} is next with {format_duration(ranked[1].jct_mean_s)}."


def growth_warnings(results: Sequence[records.ClusterResult], runs: Sequence[records.ClusterRun]) -> list[str]:
    """A warning if the queue under any policy still grows when the last job comes; else an empty list."""
    counts: dict[str, str] = {}
    for result in results:
        if result.growing and result.policy not in counts:
            scenario = (result.policy, result.restart_s, result.placement)
            same = [run for run in runs if (run.policy, run.restart_s, run.placement) == scenario]
            middle = fmean(run.unfinished_middle or 0.0 for run in same)
            end = fmean(run.unfinished_end or 0.0 for run in same)
            counts[result.policy] = f"{result.policy} {middle:.0f} and {end:.0f}"
    if not counts:
        return []
    return [
        "the queue still grows when the last job comes (unfinished jobs in the middle of the arrivals and at the end: "
        f"{', '.join(counts.values())}); means there depend on how long jobs come, and so do ratios to them; "
        "a lower load, more GPUs, or a longer trace with --window tells more"
    ]


def above(result: records.ClusterResult) -> str:
    """The gap in words: 'at most 12.3 % above the optimum'."""
    gap = result.gap or 0.0
    if gap < 0.0005:
        return "at the optimum"
    return f"at most {format_percent(gap, 0 if gap >= 1 else 1)} above the optimum"


def _placed(results: Sequence[records.ClusterResult]) -> list[str]:
    """Sentences on the cost of the other placements, at the first restart cost."""
    first = results[0]
    sentences = []
    for placement in dict.fromkeys(result.placement for result in results if result.placement != first.placement):
        costs = sorted(
            (result.placed_ratio - 1, result.policy)
            for result in results
            if result.placement == placement and result.restart_s == first.restart_s and result.placed_ratio is not None
        )
        (least, gentle), (most, harsh) = costs[0], costs[-1]
        jobs = f"{placement.capitalize() if placement else ''} over hosts, jobs take"
        if _longer(least) == _longer(most):
            sentences.append(f"{jobs} {_longer(least)} than {first.placement} on average.")
        else:
            sentences.append(
                f"{jobs} from {_longer(least)} ({gentle}) to {_longer(most)} ({harsh}) than {first.placement} on "
                "average."
            )
    return sentences


def _longer(share: float) -> str:
    return f"{format_percent(abs(share))} {'longer' if share >= 0 else 'less long'}"
