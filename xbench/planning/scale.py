"""Predictions of one profiled step on any number of workers, with throughput, efficiency and exposed communication.

Each worker keeps its batch and its compute time (weak scaling). Only T(M) changes with the number of workers, and
`topology` converts it. With C the step without communication and `batch` samples per worker and step:

    throughput(N) = N · batch / step(N)        efficiency(N) = throughput(N) / (N · batch / C) = C / step(N)

Plans are made again for every size: the best merge depends on the latency, which grows with N. `auto` is the best of
the other modes' plans and a few more, without the cut-by-cut search of a run: its step times are upper limits. Every
figure is simulated. docs/plan.md says what the error band on it stands for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from xbench.errors import RecordError, SpecError, unknown
from xbench.modes import EXACT, candidate_modes, mode_info, next_forward_modes, waiting_modes
from xbench.planning.conversion import carried_contention, carried_over, flat_ring_caution
from xbench.planning.cost import MAX_WORKERS, CostCurve
from xbench.planning.measured import Measured, check_ring
from xbench.planning.merge import optimal_contiguous
from xbench.planning.plans import Planner
from xbench.planning.scenario import Scenario
from xbench.planning.simulate import Buckets
from xbench.planning.step import StepModel, dtypes_of
from xbench.planning.topology import Topology, terms
from xbench.records import CostModel, ErrorBand, LinkTerms, Plan, Scaling, ScalingPoint, ScalingSource
from xbench.text import and_of
from xbench.units import format_bytes, format_percent, format_seconds
from xbench.version import __version__

AUTO = "auto"
CHARGES_S = (1e-3, 4e-3, 16e-3)
"""Launch costs [s] beyond the link's latency, for the exact plans among which `auto` chooses."""

MAX_SIZES = 100
MAX_BAND = 0.95

GROWTH = 0.1
GROWTH_SOURCE = (
    "held-out sizes, 95th percentile at the speed of the computation there: 4 workers predicted from 2 in "
    "xbench's own held-out.json, 8 from 2 over emulated links in its held-out-emulated.json; not checked beyond"
)
"""Growth of the error band for each doubling of the workers, and its source."""

ERROR_BAND = ErrorBand(
    share=0.24,
    source="95th percentile of |predicted / measured − 1| over the 24 cells of xbench's own matrix.json, which were "
    "drawn before they were measured",
    workers=2,
    growth=GROWTH,
    growth_source=GROWTH_SOURCE,
)
"""The band of a profile, which holds no measured step of any schedule."""


def scale(
    measured: Planner,
    topology: Topology,
    workers: Sequence[int],
    modes: Sequence[str],
    *,
    batch_size: int,
    band: ErrorBand,
) -> list[ScalingPoint]:
    """Points of every mode at every number of workers, in the given orders.

    The cost model of `measured` is of a ring of its `world_size`. `batch_size` is samples per worker and step; zero
    where it is unknown, as in a trace. Raises SpecError for an unknown mode. Raises ValueError for fewer than two
    workers, for a planner without a valid cost model, and for a mode that needs layers when there are none.
    """
    step, cost, contention = measured.step, measured.cost, measured.contention
    if cost is None:
        raise ValueError("a cost model is needed to scale")
    found: dict[tuple[str, int], ScalingPoint] = {}
    for count in workers:
        shared = carried_contention(contention, cost, topology, count) if contention else None
        link = carried_over(cost, topology, count)
        planner = replace(measured, cost=link, contention=shared)
        for mode, plan in _plans(planner, modes).items():
            step_s = plan.predicted_step_s
            found[mode, count] = ScalingPoint(
                mode=mode,
                workers=count,
                step_s=step_s,
                step_band_s=_band_s(step_s, band, count),
                exposed_s=plan.predicted_exposed_s,
                samples_per_s=count * batch_size / step_s if batch_size else None,
                efficiency=step.compute_s / step_s,
                buckets=len(plan.buckets),
                largest_bucket_bytes=max(plan.bucket_bytes, default=0),
            )
    return [found[mode, count] for mode in modes for count in workers]


def _band_s(step_s: float, band: ErrorBand, workers: int) -> tuple[float, float]:
    """The step [s] if the prediction is off by the band."""
    share = band.share
    if band.workers is not None and band.growth is not None:
        share = min(share + band.growth * abs(math.log2(workers / band.workers)), MAX_BAND)
    return step_s / (1 + share), step_s / (1 - share)


def _plans(planner: Planner, modes: Sequence[str]) -> dict[str, Plan]:
    """A plan by mode, in the order of `modes`; `auto` is chosen among the plans of the others."""
    found = {mode: planner.plan(mode) for mode in modes if mode != AUTO}
    if AUTO in modes:
        found[AUTO] = planner.plan(AUTO, _quick(planner, found))
    return {mode: found[mode] for mode in modes}


def _quick(planner: Planner, plans: Mapping[str, Plan]) -> Buckets:
    """The best buckets among every mode's own and exact plans with a higher launch cost."""
    gradients, cost = planner.step.gradients, planner.cost
    modes = [mode for mode in waiting_modes() if mode in candidate_modes()]
    candidates = [planner.indices(plans.get(mode) or planner.plan(mode)) for mode in modes]
    if cost is not None:
        lines = [CostCurve.line(cost.alpha_s + more_s, cost.beta_s_per_byte) for more_s in CHARGES_S]
        candidates += [optimal_contiguous(gradients, line) for line in lines]
    distinct = {tuple(tuple(bucket) for bucket in buckets): buckets for buckets in candidates}
    return min(distinct.values(), key=lambda buckets: (planner.simulate(AUTO, buckets).step_s, len(buckets)))


EQUAL = 0.005
CLOSE = 0.01
HALF = 0.5
DEFAULT = "ddp"


def crossovers(by_mode: Mapping[str, Sequence[ScalingPoint]], *, dtypes: int = 1) -> list[str]:
    """Sentences, the most useful first. `by_mode` holds the points of each mode, with equal, ascending sizes.

    `dtypes` is the number of gradient dtypes. No bucket holds two dtypes, so it is the least possible number of
    buckets.
    """
    modes = {mode: points for mode, points in by_mode.items() if points}
    if not modes:
        return []
    return [*_fastest(modes), *_one_bucket(modes, dtypes), *_default(modes), *_waiting(modes)]


def _best(modes: Mapping[str, Sequence[ScalingPoint]], place: int) -> list[str]:
    """Modes that are fastest at one size, in their order, including those equal to the fastest."""
    least_s = min(points[place].step_s for points in modes.values())
    return [mode for mode, points in modes.items() if points[place].step_s <= least_s * (1 + EQUAL)]


def _fastest(modes: Mapping[str, Sequence[ScalingPoint]]) -> list[str]:
    """The fastest mode of each range of sizes. Among equal modes, the one that is fastest most often."""
    if len(modes) == 1:
        return []
    sizes = [point.workers for point in next(iter(modes.values()))]
    best = [_best(modes, place) for place in range(len(sizes))]
    everywhere = [mode for mode in modes if all(mode in names for names in best)]
    if everywhere:
        where = "at every size" if len(sizes) > 1 else f"with {sizes[0]} workers"
        return [f"{and_of(everywhere)} {'is' if len(everywhere) == 1 else 'are'} fastest {where}."]
    runs: list[tuple[int, str]] = []
    for size, names in zip(sizes, best, strict=True):
        if not runs or runs[-1][1] not in names:
            runs.append((size, max(names, key=lambda mode: sum(mode in other for other in best))))
    first, *rest = runs
    return [
        f"{first[1]} is fastest with {first[0]} workers" + "".join(f", {name} from {n} on" for n, name in rest) + "."
    ]


def _one_bucket(modes: Mapping[str, Sequence[ScalingPoint]], dtypes: int) -> list[str]:
    """The size from which one bucket per dtype is fastest.

    The exact plan ignores contention, so another mode can be faster. Without the exact plan, no mode searched for the
    best buckets, and there is no sentence.
    """
    if EXACT not in modes:
        return []
    points = modes[EXACT]
    one = "one bucket" if dtypes == 1 else "one bucket a dtype"
    best = [[modes[mode][place] for mode in _best(modes, place)] for place in range(len(points))]
    since = _from_on(points, [any(point.buckets <= dtypes for point in found) for found in best])
    if since is None:
        last = min(best[-1], key=lambda point: point.step_s)
        return [f"Up to {last.workers} workers several buckets are best: {last.mode} has {last.buckets} there."]
    return [f"{_since(points, since) if len(points) > 1 else f'With {since} workers'} {one} is best."]


def _default(modes: Mapping[str, Sequence[ScalingPoint]]) -> list[str]:
    """The sizes at which DDP's default buckets are more than 1 % behind the fastest mode."""
    if DEFAULT not in modes or len(modes) == 1:
        return []
    points = modes[DEFAULT]
    least = [min(others[place].step_s for others in modes.values()) for place in range(len(points))]
    behind = [point.step_s / fastest_s - 1 for point, fastest_s in zip(points, least, strict=True)]
    since = _from_on(points, [share > CLOSE for share in behind])
    last = points[-1].workers
    if since is None:
        if max(behind) <= CLOSE:
            return ["DDP's default buckets are within 1 % of the fastest at every size."]
        place = max(range(len(points)), key=lambda index: behind[index])
        return [
            f"DDP's default buckets are within 1 % of the fastest with {last} workers, and {100 * behind[place]:.0f} % "
            f"behind with {points[place].workers}."
        ]
    worst = max(range(len(points)), key=lambda index: behind[index])
    return [
        f"DDP's default buckets are more than 1 % behind the fastest {_since(points, since).lower()}, by "
        f"{100 * behind[worst]:.0f} % with {points[worst].workers}."
    ]


def _waiting(modes: Mapping[str, Sequence[ScalingPoint]]) -> list[str]:
    """The size from which even the fastest mode waits for more than half of the step."""
    points = next(iter(modes.values()))
    most = [max(others[place].efficiency for others in modes.values()) for place in range(len(points))]
    since = _from_on(points, [efficiency < HALF for efficiency in most])
    if since is None:
        return []
    what = "the fastest mode" if len(modes) > 1 else next(iter(modes))
    return [f"{_since(points, since)} even {what} waits for gradients for more than half of the step."]


def _since(points: Sequence[ScalingPoint], since: int) -> str:
    return "At every size" if since == points[0].workers else f"From {since} workers on"


def _from_on(points: Sequence[ScalingPoint], holds: Sequence[bool]) -> int | None:
    """The first size from which `holds` is true up to the last size; None when it is false at the last."""
    since = None
    for point, true in zip(reversed(points), reversed(holds), strict=True):
        if not true:
            break
        since = point.workers
    return since


def parse_workers(text: str) -> tuple[int, ...]:
    """Ascending sizes from '2..2048' (doubling, both ends included), '2,4,8' or both mixed. Raises SpecError."""
    sizes: set[int] = set()
    for part in text.split(","):
        first, dots, last = part.partition("..")
        low, high = _size(first, text), _size(last if dots else first, text)
        if high < low:
            raise SpecError(f"--workers: {part.strip()!r} runs backwards", hint=f"write {high}..{low}")
        while low < high:
            sizes.add(low)
            low *= 2
        sizes.add(high)
    if len(sizes) > MAX_SIZES:
        raise SpecError(f"--workers: {len(sizes)} sizes are too many", hint=f"at most {MAX_SIZES}")
    return tuple(sorted(sizes))


def parse_scaled_modes(text: str | None) -> tuple[str, ...]:
    """Modes from 'ddp,optimal'. None: all but the controls and the modes that send during the next forward pass.

    Raises SpecError with the nearest name.
    """
    if text is None:
        return tuple(mode for mode in waiting_modes() if mode_info(mode).trains)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not name:
            raise SpecError(f"--modes: {text!r} has an empty name", hint="write ddp,optimal")
        known = (*waiting_modes(), *next_forward_modes())
        if name not in known:
            error = unknown("mode", name, known)
            raise SpecError(str(error), hint=error.hint or f"one job's schedules are {', '.join(known)}")
    return tuple(dict.fromkeys(names))


def error_band(measured: Measured, share: float | None) -> ErrorBand:
    """The error band: `share` if given, else the record's own if it holds measured steps, else `ERROR_BAND`."""
    if share is not None:
        return ErrorBand(share=share, source="given with --error-band")
    errors = {
        name: abs(measured.record.modes[name].prediction_error or 0.0)
        for name in measured.measured_step_s
        if mode_info(name).trains and measured.record.modes[name].prediction_error is not None
    }
    if errors:
        worst = max(errors, key=lambda name: errors[name])
        return ErrorBand(
            share=min(errors[worst], MAX_BAND),
            source=f"the largest error of this record's own predictions, that of {worst}",
            workers=measured.cost.world_size,
            growth=GROWTH,
            growth_source=GROWTH_SOURCE,
        )
    return ERROR_BAND.model_copy(update={"workers": measured.cost.world_size})


def check(measured: Measured, topology: Topology) -> None:
    """Raise RecordError for a record whose numbers cannot be converted, SpecError for a link that was not measured."""
    try:
        check_ring(measured.fabric)
    except ValueError as error:
        raise RecordError(f"{measured.name!r} says nothing of other sizes: {error}") from None
    if topology.measured_inside and measured.fabric.hosts > 1:
        raise SpecError(
            f"between= takes the measured link for the one inside a host, and {measured.name!r} was measured on "
            f"{measured.fabric.hosts} hosts",
            hint="leave out between=, and give the link inside a host with rate=",
        )


@dataclass(frozen=True)
class Request:
    """Parsed arguments of `xbench plan --workers 2..2048`."""

    topology: Topology
    workers: tuple[int, ...]
    modes: tuple[str, ...]
    error_band: float | None = None


def to_record(scenario: Scenario, request: Request, command: str) -> Scaling:
    """The complete record. `scenario` is the measurements with any changes. Raises RecordError and SpecError."""
    measured = scenario.measured
    check(measured, request.topology)
    step, cost = scenario.step, scenario.cost
    band = error_band(measured, request.error_band)
    points = scale(
        scenario.planner,
        request.topology,
        request.workers,
        request.modes,
        batch_size=measured.workload.batch_size,
        band=band,
    )
    by_mode: Mapping[str, list[ScalingPoint]] = {
        mode: [point for point in points if point.mode == mode] for mode in request.modes if mode_info(mode).trains
    }
    links = [carried_over(cost, request.topology, count) for count in request.workers]
    return Scaling(
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        command=command,
        xbench=__version__,
        source=ScalingSource(
            path=measured.name,
            kind=measured.record.kind,
            created=measured.record.created,
            command=measured.record.command,
        ),
        workload=measured.workload,
        fabric=measured.fabric,
        topology=str(request.topology),
        compute_scale=scenario.compute_scale,
        compute_s=step.compute_s,
        modes=list(request.modes),
        workers=list(request.workers),
        measured_link=_terms(measured.cost, measured.step),
        links=[_terms(link, step) for link in links],
        error_band=band,
        points=points,
        findings=crossovers(by_mode, dtypes=len(dtypes_of(step.gradients))),
        assumptions=_assumptions(scenario, request),
        warnings=_warnings(scenario, request),
    )


def _terms(model: CostModel, step: StepModel) -> LinkTerms:
    return LinkTerms(
        workers=model.world_size,
        a_s=model.alpha_s,
        b_s_per_byte=model.beta_s_per_byte,
        all_gradients_s=CostCurve.of(model)(float(step.grad_bytes)),
    )


def _size(text: str, whole: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise SpecError(
            f"--workers: {text.strip()!r} in {whole!r} is not a whole number", hint="write 2..2048 or 2,4,8"
        ) from None
    if number < 2:
        raise SpecError(f"--workers: {number} is below 2, and one worker has nobody to share with", hint="try 2..2048")
    if number > MAX_WORKERS:
        raise SpecError(f"--workers: {number} is above {MAX_WORKERS}", hint=f"try {MAX_WORKERS}")
    return number


def _assumptions(scenario: Scenario, request: Request) -> list[str]:
    """Assumptions of the figures, one sentence each."""
    cost, topology = scenario.cost, request.topology
    alpha_s, beta_s_per_byte = terms(cost)
    ran = "ran" if cost.backend == "gloo" else "are taken to have run"
    said = [
        f"The {cost.world_size} workers that were measured over {cost.backend} {ran} a ring: one message takes "
        f"{format_seconds(alpha_s)} and {format_seconds(beta_s_per_byte * 1024**2)} a MiB as a straight line; its "
        "measured shape is kept.",
        *(f"What if: {change}." for change in scenario.changes),
    ]
    if topology.name == "hierarchical":
        inside, between = f"inside a host of {topology.gpus}", "between hosts"
        measured, other, key = (inside, between, "between") if topology.measured_inside else (between, inside, "rate")
        latency_s, s_per_byte = topology.given_link
        said.append(
            f"What was measured is the link {measured}. {other.capitalize()} a message takes "
            f"{format_seconds(latency_s)} and {format_seconds(1e9 * s_per_byte)} a GB, which was not measured: {key}= "
            "and latency= change it."
        )
    both = scenario.contention_record
    if scenario.contention is None or both is None or not both.points:
        said.append("Computation and communication do not slow each other down: this record did not measure how much.")
    else:
        changed = ", carried over to what was changed" if scenario.changes else ""
        said.append(f"Computation and communication slow each other down as was measured{changed}, by size of message.")
    if AUTO in request.modes:
        said.append(
            "auto is the best of the other plans and a few more; a run searches on, so its steps here are upper limits."
        )
    ahead = [mode for mode in request.modes if mode_info(mode).puts_off]
    if ahead:
        said.append(
            f"{' and '.join(ahead)}: the best of a short search, so steps here are upper limits; layers of the next "
            "forward pass wait for their own gradients alone."
        )
    said += [
        "Every worker keeps its batch, computes as fast as the one that was profiled, and is never late; no link is "
        "shared with others.",
        "A size at which something changes is one of those shown: the change lies between it and the one before.",
    ]
    return said


def _warnings(scenario: Scenario, request: Request) -> list[str]:
    """Warnings where the figures extend beyond the measurements."""
    cost, fabric = scenario.cost, scenario.measured.fabric
    said = list(scenario.cautions)
    least, most = min(request.workers), max(request.workers)
    if most > cost.world_size or least < cost.world_size:
        far = f" ({most // cost.world_size} times as many)" if most >= 2 * cost.world_size else ""
        said.append(
            f"{cost.world_size} workers were measured. Other sizes, up to {most}{far}, are extrapolated by the "
            f"formulas of {request.topology.name}."
        )
    points = scenario.basis.points
    if points:
        smallest = min(point.nbytes for point in points) / cost.world_size
        largest = max(point.nbytes for point in points) / cost.world_size
        whole = scenario.step.grad_bytes
        split = request.topology.name == "ring"
        if split and whole / most < smallest:
            said.append(
                f"With {most} workers even all gradients at once travel in messages of {format_bytes(whole / most)}. "
                f"The smallest measured was {format_bytes(smallest)}: smaller ones are taken to need as long."
            )
        if not split and whole > largest * 1.001 and request.topology.name != "hierarchical":
            said.append(
                f"Messages of up to {format_bytes(whole)} travel here, and the largest measured was "
                f"{format_bytes(largest)}: beyond it the last slope goes on."
            )
    flat = flat_ring_caution(fabric)
    said += [flat] if flat is not None else []
    if fabric.hosts == 1 and not request.topology.measured_inside:
        said.append("The all-reduce was measured inside one machine: links between machines are slower.")
    residual = cost.segmented_max_relative_residual if cost.segments else cost.max_relative_residual
    if residual is not None and residual > 0.25:
        said.append(
            f"The cost model misses a size that was measured by {format_percent(residual, 0)}: profile again on a "
            "quieter machine."
        )
    if not scenario.measured.record.complete:
        said.append("The run that measured this ended early.")
    return said
