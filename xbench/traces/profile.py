"""The profile record of a traced run, from the traces of one or more of its ranks.

Compute times are those of the traced run, traffic included, so the planner adds no contention to them. Communication is
what the trace shows of it: T(M) at the sizes of the run's own buckets. A collective of a rank begins when that
rank launches it, so its time includes waiting for peers. With several ranks the shortest of them shows the transfer.
With one rank the shortest repetition does. No larger message is faster, so a size takes at most what a larger one took.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

from xbench.errors import UsageError
from xbench.planning.cost import LINE_TOLERANCE, fit
from xbench.records import CostModel, CostPoint, CostSegment, Layer, StepTimes, Tensor
from xbench.records.comparison import Traced, TracedBucket
from xbench.stats.summary import median_estimate
from xbench.text import counted
from xbench.traces.link import link_cost, read_link
from xbench.traces.ranks import RECORD_IT, RankSteps
from xbench.traces.sizes import Parameter, Sizes, gradient_sizes
from xbench.traces.steps import Sent, TracedStep
from xbench.units import format_bytes, format_duration, format_percent

OFF_THE_LINE = 0.25
"""Largest relative residual of T(M) that is not worth a caution."""

ALIKE = 1.1
"""Sizes of collectives closer than this ratio make one point of T(M)."""

MAX_RATE = 20e12
"""Rate that no memory of a device reaches, so no collective either [B/s]."""

NOTABLE = 0.01
"""Share of a step beyond which the exposed communication without gradients is worth a caution."""

FIT_POINTS = 20
"""About as many points are fitted, each size in proportion to how often it was sent."""


@dataclass(frozen=True)
class TracedProfile:
    """Parts of a profile that come from traces."""

    layers: list[Layer]
    step: StepTimes
    cost: CostModel
    traced: Traced
    world_size: int
    backend: str
    bucket_of: list[int]
    """The bucket of each gradient, in ready order."""
    cautions: list[str]


def traced_profile(
    ranks: Sequence[RankSteps], *, parameters: Sequence[Parameter] | None = None, links: Sequence[Path] = ()
) -> TracedProfile:
    """Build the parts of a profile. `parameters` are those of the model, if it is known; `links` are files of T(M).

    Raises UsageError where no size of the gradients is known, where collectives are faster than any memory, and as
    `link_cost` does.
    """
    first = ranks[0]
    world_size, assumed = _world_size(ranks, links)
    backend = first.trace.backend or ("nccl" if first.trace.is_gpu else "gloo")
    sizes = gradient_sizes(first.trace, first.steps, parameters)
    parts = _parts(ranks)
    layers = _layers(ranks, sizes, parts)
    points = _points(ranks, sizes)
    _check_rates(first.name, points)
    cost = _linked(links, backend, world_size, sizes) if links else _cost(points, backend, world_size)
    if cost.world_size != world_size:
        raise UsageError(f"--link is of {cost.world_size} ranks, and the traced run had {world_size}")
    cautions = [*assumed, *sizes.cautions, *_cautions(ranks, points, cost, has_link=bool(links))]
    collective = Counter(sent.collective.kind for sent in first.steps[0].sent).most_common(1)[0][0]
    traced = Traced(
        files=[rank.name for rank in ranks],
        ranks=len(ranks),
        collective=collective,
        periods_s=[statistics.median(same) for same in _by_step(ranks, lambda step: step.period_s)],
        exposed_s=statistics.median(min(same) for same in _by_step(ranks, lambda step: step.exposed_s)),
        waited_s=parts.waited_s,
        buckets=_buckets(ranks, sizes),
        sizes_from=sizes.source,
        compute_slowdown=_slowdown(ranks),
    )
    return TracedProfile(layers, parts.times, cost, traced, world_size, backend, sizes.bucket_of, cautions)


def _world_size(ranks: Sequence[RankSteps], links: Sequence[Path]) -> tuple[int, list[str]]:
    """The number of ranks, from the traces, else from the link's files, else assumed with a caution."""
    traced, given = (rank.trace.world_size for rank in ranks), (read_link(path).world_size for path in links)
    known = next((number for number in chain(traced, given) if number is not None), None)
    if known is not None:
        return known, []
    assumed = max(2, len(ranks))
    return assumed, [f"No file says how many ranks took part; {assumed} are assumed."]


@dataclass(frozen=True)
class _Parts:
    """The step's parts over all ranks and steps, and each gradient's ready time [s]."""

    times: StepTimes
    waited_s: float
    ready_s: list[float]


def _by_step(ranks: Sequence[RankSteps], of: Callable[[TracedStep], float]) -> list[list[float]]:
    """One value a rank for each step."""
    return [[of(step) for step in same] for same in zip(*(rank.steps for rank in ranks), strict=True)]


def _parts(ranks: Sequence[RankSteps]) -> _Parts:
    """Parts of the job's step. It starts backward with its last rank, and has a gradient when its last rank has it."""
    forward, backward, waited, optimizer, compute, period = [], [], [], [], [], []
    ready: list[list[float]] = []
    for same in zip(*(rank.steps for rank in ranks), strict=True):
        begins_s = max(step.forward_s for step in same)
        ready.append(
            [
                max(0.0, max(step.forward_s + ready_s for step, ready_s in zip(same, one, strict=True)) - begins_s)
                for one in zip(*(step.ready_s for step in same), strict=True)
            ]
        )
        forward.append(begins_s)
        backward.append(max(step.forward_s + step.backward_s for step in same) - begins_s)
        waited.append(min(step.waited_s for step in same))
        period.append(statistics.median(step.period_s for step in same))
        compute.append(period[-1] - waited[-1])
        optimizer.append(max(0.0, compute[-1] - forward[-1] - backward[-1]))
    bare, whole = median_estimate(compute), median_estimate(period)
    if not bare.median > 0:
        raise UsageError(f"{ranks[0].name}: its steps only wait, so there is nothing to plan", hint=RECORD_IT)
    times = StepTimes(
        forward_s=statistics.median(forward),
        backward_s=statistics.median(backward),
        optimizer_s=statistics.median(optimizer),
        step_s=whole.median,
        step_ci95=whole.ci95,
        uninstrumented_step_s=bare.median,
        uninstrumented_ci95=bare.ci95,
        overhead_ratio=0.0,
        overhead_ci95=(0.0, 0.0),
        steps=len(period),
        warmup_steps=0,
    )
    medians = [statistics.median(same) for same in zip(*ready, strict=True)]
    return _Parts(times, statistics.median(waited), [max(medians[: place + 1]) for place in range(len(medians))])


def _layers(ranks: Sequence[RankSteps], sizes: Sizes, parts: _Parts) -> list[Layer]:
    """Layers in ready order. Forward times are scaled down where they add up to more than the forward pass."""
    structure = ranks[0].steps[0].layers
    usable = all(
        [layer.gradients for layer in step.layers] == [layer.gradients for layer in structure]
        for rank in ranks
        for step in rank.steps
    )
    forward = [
        max(statistics.median(step.layers[place].forward_s for step in rank.steps) for rank in ranks) if usable else 0.0
        for place in range(len(structure))
    ]
    whole_s = parts.times.forward_s
    scale = min(1.0, whole_s / sum(forward)) if sum(forward) > 0 else 1.0
    found, place, before_s = [], 0, 0.0
    for number, (layer, forward_s) in enumerate(zip(structure, forward, strict=True), start=1):
        mine = range(place, place + layer.gradients)
        place += layer.gradients
        tensors = [
            Tensor(
                name=sizes.names[index] or f"{layer.kind}-{number}.{index - mine.start + 1}",
                elements=sizes.elements[index],
                bytes=sizes.nbytes[index],
                dtype=sizes.dtypes[index],
                ready_s=parts.ready_s[index],
            )
            for index in mine
        ]
        ready_s = tensors[-1].ready_s
        found.append(
            Layer(
                name=tensors[0].name.rpartition(".")[0] or f"{layer.kind}-{number}",
                kind=layer.kind,
                parameters=sum(tensor.elements for tensor in tensors),
                grad_bytes=sum(tensor.bytes for tensor in tensors),
                forward_s=forward_s * scale,
                backward_s=ready_s - before_s,
                ready_s=ready_s,
                share=(forward_s * scale + ready_s - before_s) / parts.times.uninstrumented_step_s,
                tensors=tensors,
            )
        )
        before_s = ready_s
    return found


def _points(ranks: Sequence[RankSteps], sizes: Sizes) -> list[CostPoint]:
    """Times of an all-reduce by size, as the traced collectives show them."""
    durations: dict[int, list[list[float]]] = defaultdict(list)
    for same in zip(*(rank.steps for rank in ranks), strict=True):
        by_rank = [_shared_out(step, sizes) for step in same]
        for place, nbytes in enumerate(sizes.sent_nbytes):
            together = [lasted[place] for lasted in by_rank if place < len(lasted)]
            if together and nbytes > 0:
                durations[nbytes].append(
                    [max(1e-9, duration_s + _gathered_s(same[0], place, nbytes)) for duration_s in together]
                )
    points: list[CostPoint] = []
    cap_s = float("inf")
    for sizes_alike in _alike(sorted(durations, reverse=True)):
        nbytes = sizes_alike[len(sizes_alike) // 2]
        both = [together for size in sizes_alike for together in durations[size]]
        shortest = [min(together) for together in both]
        estimate = median_estimate(shortest)
        seen_s = estimate.median if len(ranks) > 1 else min(shortest)
        cap_s = min(cap_s, seen_s)
        points.append(
            CostPoint(
                nbytes=nbytes,
                transfer_s=cap_s,
                ci95=(min(estimate.ci95[0], cap_s), cap_s if len(ranks) == 1 else max(cap_s, estimate.ci95[1])),
                wait_s=max(0.0, statistics.median(max(together) for together in both) - cap_s),
                repetitions=len(shortest),
            )
        )
    return points[::-1]


def _check_rates(name: str, points: Sequence[CostPoint]) -> None:
    fastest = max(points, key=lambda point: point.nbytes / point.transfer_s, default=None)
    if fastest is not None and fastest.nbytes > MAX_RATE * fastest.transfer_s:
        raise UsageError(
            f"{name}: a collective of {format_bytes(fastest.nbytes)} took {fastest.transfer_s:.2g} s, and no device is "
            "so fast",
            hint="times in a trace are microseconds, and sizes are counts of elements",
        )


def _shared_out(step: TracedStep, sizes: Sizes) -> list[float]:
    """Durations of a step's collectives [s]. Those of one size share their time evenly if some of them overlapped."""
    by_size: dict[int, list[Sent]] = defaultdict(list)
    for sent, nbytes in zip(step.sent, sizes.sent_nbytes, strict=False):
        by_size[nbytes].append(sent)
    mean_s = {
        nbytes: statistics.fmean(sent.duration_s for sent in same)
        for nbytes, same in by_size.items()
        if any(sent.begin_s > sent.collective.start_s for sent in same)
    }
    return [mean_s.get(nbytes, sent.duration_s) for sent, nbytes in zip(step.sent, sizes.sent_nbytes, strict=False)]


def _alike(sizes: Sequence[int]) -> list[list[int]]:
    """Groups of descending sizes that are within ALIKE of their largest: their times differ by noise."""
    groups: list[list[int]] = []
    for size in sizes:
        if groups and groups[-1][0] <= ALIKE * size:
            groups[-1].append(size)
        else:
            groups.append([size])
    return groups


def _gathered_s(step: TracedStep, place: int, nbytes: int) -> float:
    """The time that an all-gather adds where gradients are reduce-scattered: the two are one all-reduce.

    Parameters are gathered in their own dtype, which is that of the collective or of the gradients.
    """
    scatter = step.sent[min(place, len(step.sent) - 1)]
    if scatter.collective.kind != "reduce_scatter":
        return 0.0
    sizes = (scatter.collective.nbytes, nbytes)
    gathers = [one.end_s - one.start_s for one in step.others if one.kind == "all_gather" and one.nbytes in sizes]
    scatters = [sent.duration_s for sent in step.sent if sent.collective.nbytes == scatter.collective.nbytes]
    return min(gathers or scatters)


def _linked(links: Sequence[Path], backend: str, world_size: int, sizes: Sizes) -> CostModel:
    """T(M) of the files, by bytes of gradients: the files count bytes that are sent."""
    cost = link_cost(links, world_size=world_size, backend=backend)
    if sizes.bytes_per_sent_byte == 1.0:
        return cost
    points = [
        point.model_copy(update={"nbytes": round(point.nbytes * sizes.bytes_per_sent_byte)}) for point in cost.points
    ]
    return fit(points, backend=backend, world_size=cost.world_size)


def _cost(points: Sequence[CostPoint], backend: str, world_size: int) -> CostModel:
    """Fit a line T(M), or join the points where no line holds. One size gives no latency.

    A size counts as often as it was sent, because T(M) has to hold for the run's own buckets first.
    """
    if not points:
        raise UsageError(
            "the trace does not say how many bytes its collectives carried",
            hint="give --link FILE, or record the trace with record_shapes=True",
        )
    if len(points) > 1:
        sent = sum(point.repetitions for point in points)
        weighted = [point for point in points for _ in range(max(1, round(FIT_POINTS * point.repetitions / sent)))]
        line = fit(weighted, backend=backend, world_size=world_size)
        is_off = line.max_relative_residual > LINE_TOLERANCE
        return line.model_copy(
            update={
                "points": list(points),
                "segments": _joined(points, line) if is_off else [],
                "segmented_max_relative_residual": 0.0 if is_off else None,
            }
        )
    slope = points[0].transfer_s / points[0].nbytes
    return CostModel(
        backend=backend,
        world_size=world_size,
        alpha_s=0.0,
        beta_s_per_byte=slope,
        alpha_ci95=(0.0, points[0].transfer_s),
        beta_ci95=(0.0, slope),
        max_relative_residual=0.0,
        points=list(points),
    )


def _joined(points: Sequence[CostPoint], line: CostModel) -> list[CostSegment]:
    """Pieces of T(M) from point to point. They begin at the line's latency, and go on with its slope."""
    knots = [(0, min(line.alpha_s, points[0].transfer_s)), *((point.nbytes, point.transfer_s) for point in points)]
    slopes = [(end_s - begin_s) / (end - begin) for (begin, begin_s), (end, end_s) in pairwise(knots)]
    return [
        CostSegment(from_bytes=begin, alpha_s=begin_s - slope * begin, beta_s_per_byte=slope)
        for (begin, begin_s), slope in zip(knots, [*slopes, line.beta_s_per_byte], strict=True)
    ]


def _buckets(ranks: Sequence[RankSteps], sizes: Sizes) -> list[TracedBucket]:
    steps = [step for rank in ranks for step in rank.steps]
    return [
        TracedBucket(
            gradients=sent.gradients,
            nbytes=nbytes,
            launched_s=statistics.median(
                max(0.0, step.sent[place].collective.launched_s - step.gradients[0].start_s) for step in steps
            ),
            duration_s=statistics.median(min(same) for same in _durations(ranks, place)),
        )
        for place, (sent, nbytes) in enumerate(zip(ranks[0].steps[-1].sent, sizes.sent_nbytes, strict=True))
        if all(place < len(step.sent) for step in steps)
    ]


def _durations(ranks: Sequence[RankSteps], place: int) -> list[list[float]]:
    return _by_step(ranks, lambda step: step.sent[place].duration_s)


def _slowdown(ranks: Sequence[RankSteps]) -> float | None:
    known = [rank.trace.compute_slowdown for rank in ranks if rank.trace.compute_slowdown is not None]
    return statistics.median(known) if known else None


def _cautions(ranks: Sequence[RankSteps], points: Sequence[CostPoint], cost: CostModel, *, has_link: bool) -> list[str]:
    found = []
    count = len(ranks[0].steps)
    if count < 3:
        found.append(f"The trace holds {counted(count, 'whole step')}: medians of so few say little.")
    if len(ranks) > 1 and any(step.number is None for rank in ranks for step in rank.steps):
        found.append(
            "The profiler marked no steps, so which steps of several ranks are the same is told from their order."
        )
    if len(ranks) == 1 and not has_link:
        found.append(
            "One rank was read, so the waiting for peers inside a collective can only be told from repetitions."
        )
    if cost.max_relative_residual > OFF_THE_LINE and not has_link:
        found.append(
            f"The traced collectives are up to {format_percent(cost.max_relative_residual, 0)} off one line T(M), so "
            "times of other sizes are rough."
        )
    if len(points) == 1 and not has_link:
        found.append(
            f"All collectives had {format_bytes(points[0].nbytes)}, so T(M) of other sizes is extrapolated, "
            "without a latency."
        )
    if not any(step.forward_s for rank in ranks for step in rank.steps):
        found.append(
            "Nothing was computed before backward in any step, so what the trace holds of forward counts as the rest."
        )
    others_s = statistics.median(step.exposed_others_s for rank in ranks for step in rank.steps)
    if others_s > NOTABLE * statistics.median(step.period_s for rank in ranks for step in rank.steps):
        kinds = sorted({one.kind for rank in ranks for step in rank.steps for one in step.others})
        found.append(
            f"{format_duration(others_s)} of the exposed communication a step belong to collectives that carry no "
            f"gradients ({', '.join(kinds)}). No plan changes them."
        )
    passes = statistics.mode(step.passes for rank in ranks for step in rank.steps)
    if passes > 1:
        found.append(
            f"The run sent gradients in each of {passes} backward passes of a step. Plans send them once, in the last "
            "pass, as no_sync() does; what the other passes waited for them counts as waiting."
        )
    if any(rank.steps[0].sent[0].collective.kind == "reduce_scatter" for rank in ranks):
        found.append(
            "The run sharded its parameters; an all-reduce is taken as its reduce-scatter and all-gather together."
        )
    return found
