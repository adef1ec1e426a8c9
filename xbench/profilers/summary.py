"""Summary of the raw times of all ranks for the record. Pure functions over JSON data, without torch, for the parent.

Ranks do the same work at the same time, and the step waits for the last of them. So each number is the median over the
steps of a rank, and then the largest over ranks. `stats.summary.detect_warmup` finds the warm-up at the start, which is
at least the number given to the ranks. The warm-up stays in the raw series.

An all-reduce is seen from every rank on one time line (see `profilers.collectives`). It cannot begin before the last
rank has started, and it is over when the last rank has the result:

    wait_s     = latest start − earliest start      of the ranks: the delay of the first rank by late peers
    transfer_s = latest end − latest start          the time of the collective itself
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from xbench.errors import RunError
from xbench.records import CostPoint, Interval, Layer, StepTimes, Tensor
from xbench.stats.convergence import mean_of
from xbench.stats.stragglers import OwnSteps
from xbench.stats.summary import detect_warmup, median_estimate

Seen = Sequence[Sequence[float | None]]
TRIMMED = 10
"""With at least so many repetitions of a size, the longest is left out of the mean."""

MIN_STEPS = 3
"""Steps that count, however long the warm-up seems: a median of fewer has no meaning."""


def summarise(raws: Sequence[dict[str, Any]]) -> tuple[list[Layer], StepTimes]:
    """Layers in gradient-ready order and the step's times, from one `StepProfile.raw()` per rank.

    A layer's backward_s is its ready_s minus that of the layer before it, from the reported values. Their sum is
    exactly the time to the last gradient. Parameters without a gradient in any counted step are left out (`left_out`
    names them). The bare step is each step's maximum over ranks, as `compute` is timed. The overhead of the
    instrumentation is the median over pairs of neighbouring steps of instrumented over bare, minus one, each pair
    averaged over ranks. Raises RunError when the ranks profiled different models, ValueError without ranks.
    """
    _check_same_model(raws)
    first, micro_steps = _warmup_pairs(raws), raws[0]["micro_steps"]
    last = max(raws, key=lambda raw: statistics.median(raw["steps"]["step_s"][first:]))
    step = median_estimate(last["steps"]["step_s"][first:])
    bare = median_estimate(slowest(raw["steps"]["uninstrumented_step_s"][first:] for raw in raws))
    overhead = median_estimate(_overheads(raws)[first:])
    waits = [raw["steps"]["load_s"][first:] for raw in raws if "load_s" in raw["steps"]]
    times = StepTimes(
        forward_s=_slowest_median(raw["steps"]["forward_s"][first:] for raw in raws),
        backward_s=_slowest_median(raw["steps"]["backward_s"][first:] for raw in raws),
        optimizer_s=_slowest_median(raw["steps"]["optimizer_s"][first:] for raw in raws),
        step_s=step.median,
        step_ci95=step.ci95,
        uninstrumented_step_s=bare.median,
        uninstrumented_ci95=bare.ci95,
        overhead_ratio=overhead.median,
        overhead_ci95=overhead.ci95,
        steps=len(last["steps"]["step_s"]) - first,
        warmup_steps=first,
        micro_steps=micro_steps,
        input_s=_slowest_median(waits) if waits else 0.0,
        accumulate_s=_slowest_median(raw["steps"]["accumulate_s"][first:] for raw in raws) if micro_steps > 1 else 0.0,
        input_ahead=raws[0]["loads_ahead"],
        updates_together=raws[0]["updates_together"],
    )
    return _layers(raws, first, step.median), times


def slowest(series: Iterable[Sequence[float]]) -> list[float]:
    """The largest value of each step over the series of all ranks."""
    return [max(ranks) for ranks in zip(*series, strict=True)]


def left_out(raws: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Names of parameters that `summarise` leaves out: 'frozen', and 'unused' (trainable, but never a gradient)."""
    _check_same_model(raws)
    first = _warmup_pairs(raws)
    return {
        "frozen": list(raws[0]["frozen"]),
        "unused": [one["name"] for layer in _gradients(raws) for one, seen in layer if _ready_s(seen, first) is None],
    }


def sometimes_missing(raws: Sequence[dict[str, Any]]) -> list[str]:
    """Names of trainable parameters without a gradient in some step of some rank, warm-up included."""
    _check_same_model(raws)
    return [one["name"] for layer in _gradients(raws) for one, seen in layer if any(None in times for times in seen)]


def samples(raws: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """The raw per-step series [s] for a record ('rank0.step_s', 'rank0.forward_s', …), warm-up included."""
    return {
        f"rank{rank}.{name}": list(values) for rank, raw in enumerate(raws) for name, values in raw["steps"].items()
    }


def own_steps(raws: Sequence[dict[str, Any]], waited: Sequence[float], hosts: Sequence[str | None]) -> list[OwnSteps]:
    """Each rank's own steps, instrumented and bare, for `stats.stragglers`; `waited` and `hosts` are by rank.

    The wait for a loader and the time before the first layer are `input`, and no part of `forward`. A pass ends a
    layer's time with the start of the next one (forward) or with its last gradient (backward).
    """
    _check_same_model(raws)
    first = _warmup_pairs(raws)
    found = []
    for rank, raw in enumerate(raws):
        steps = raw["steps"]
        medians = {name: statistics.median(values[first:]) for name, values in steps.items()}
        forward_s = (statistics.median(layer["forward_s"][first:]) for layer in raw["layers"])
        ends_s = itertools.accumulate(forward_s, initial=-medians["input_s"])
        forward_ends_s = dict(zip((layer["name"] for layer in raw["layers"]), list(ends_s)[1:], strict=True))
        ready_s = {
            layer["name"]: _ready_s([tensor["ready_s"] for tensor in layer["tensors"]], first)
            for layer in raw["layers"]
        }
        ready = sorted((time_s, name) for name, time_s in ready_s.items() if time_s is not None)
        found.append(
            OwnSteps(
                steps_s=[*steps["step_s"][first:], *steps["uninstrumented_step_s"][first:]],
                parts_s={
                    "input": medians.get("load_s", 0.0) + medians["input_s"],
                    "forward": medians["forward_s"] - medians["input_s"],
                    "backward": medians["backward_s"],
                    "optimizer": medians["optimizer_s"],
                },
                ends_s={"forward": forward_ends_s, "backward": {name: time_s for time_s, name in ready}},
                waited_share=waited[rank],
                host=hosts[rank],
            )
        )
    return found


def cost_points(raws: Sequence[Sequence[dict[str, Any]]], *, means: bool = False) -> list[CostPoint]:
    """One point per size, in ascending order, from the results of `measure_all_reduce` of each rank.

    A point's time is the median of its repetitions. With `means` it is their mean, for a mode that waits for many
    collectives in a row: rare long ones are a part of each of its steps. The longest of TRIMMED or more repetitions
    does not count. It is mostly caused by the machine.

    The estimated clock offsets may have an error larger than the time of a short collective. But the last rank to start
    waited for no other. So the shortest time of any rank, on its own clock, is a lower bound of the transfer without
    any offset, and transfer_s is never below it. Raises RunError when ranks measured different sizes or repetitions,
    ValueError without ranks.
    """
    if not raws:
        raise ValueError("cost points need the measurements of at least one rank")
    shapes = [[(point["nbytes"], point["warmup"], len(point["start_s"])) for point in raw] for raw in raws]
    for rank, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise RunError(f"rank {rank} measured other all-reduce sizes or repetitions than rank 0")
    points: list[CostPoint] = []
    for same_size in zip(*raws, strict=True):
        warmup = same_size[0]["warmup"]
        transfers_s: list[float] = []
        waits_s: list[float] = []
        by_repetition = (
            zip(*(point[end][warmup:] for point in same_size), strict=True) for end in ("start_s", "end_s")
        )
        for starts, ends in zip(*by_repetition, strict=True):
            shortest_s = min(end - start for start, end in zip(starts, ends, strict=True))
            transfers_s.append(max(max(ends) - max(starts), shortest_s))
            waits_s.append(max(starts) - min(starts))
        time_s, ci95 = _mean(transfers_s) if means else _median(transfers_s)
        points.append(
            CostPoint(
                nbytes=same_size[0]["nbytes"],
                transfer_s=time_s,
                ci95=ci95,
                wait_s=statistics.median(waits_s),
                repetitions=len(transfers_s),
            )
        )
    return sorted(points, key=lambda point: point.nbytes)


def _median(values: Sequence[float]) -> tuple[float, Interval]:
    found = median_estimate(values)
    return found.median, found.ci95


def _mean(values: Sequence[float]) -> tuple[float, Interval]:
    """The mean and Student's 95 % interval of it, cut at 0. The largest of TRIMMED or more values is left out."""
    kept = sorted(values)[:-1] if len(values) >= TRIMMED else values
    found = mean_of(kept, least=0.0)
    return found.mean, found.ci95 or (found.mean, found.mean)


def clocks(raws: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """The clock fields of `CostModel`, by name, from the results of `measure_all_reduce` of each rank."""
    return {
        "clock_offset_s": [raw[0]["offset_s"] for raw in raws],
        "clock_error_s": max(raw[0]["clock_error_s"] for raw in raws),
    }


def _check_same_model(raws: Sequence[dict[str, Any]]) -> None:
    if not raws:
        raise ValueError("a summary needs the profile of at least one rank")
    shapes = [
        (
            len(raw["steps"]["step_s"]),
            [(layer["name"], [(t["name"], t["bytes"]) for t in layer["tensors"]]) for layer in raw["layers"]],
        )
        for raw in raws
    ]
    for rank, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise RunError(f"rank {rank} profiled another model, or other steps, than rank 0")


def _warmup_pairs(raws: Sequence[dict[str, Any]]) -> int:
    """Pairs of an instrumented and a bare step before the first that counts: the longest warm-up of any rank."""
    found = 0
    for raw in raws:
        steps = raw["steps"]
        pairs_s = [a + b for a, b in zip(steps["step_s"], steps["uninstrumented_step_s"], strict=True)]
        found = max(found, raw["warmup"], min(detect_warmup(pairs_s), max(0, len(pairs_s) - MIN_STEPS)))
    return found


def _overheads(raws: Sequence[dict[str, Any]]) -> list[float]:
    by_rank = [
        [a / b - 1 for a, b in zip(raw["steps"]["step_s"], raw["steps"]["uninstrumented_step_s"], strict=True)]
        for raw in raws
    ]
    return [statistics.fmean(ranks) for ranks in zip(*by_rank, strict=True)]


def _slowest_median(series: Iterable[Sequence[float]]) -> float:
    return max(statistics.median(values) for values in series)


def _gradients(raws: Sequence[dict[str, Any]]) -> list[list[tuple[dict[str, Any], Seen]]]:
    """The tensors of each layer, each with its ready times by rank."""
    same_layers = zip(*(raw["layers"] for raw in raws), strict=True)
    same_tensors = [list(zip(*(layer["tensors"] for layer in ranks), strict=True)) for ranks in same_layers]
    return [[(ranks[0], [tensor["ready_s"] for tensor in ranks]) for ranks in layer] for layer in same_tensors]


def _ready_s(seen: Seen, first: int) -> float | None:
    """Median over the counted steps with this gradient, slowest series; None when no step had it."""
    present = ([value for value in series[first:] if value is not None] for series in seen)
    return max((statistics.median(values) for values in present if values), default=None)


def _layers(raws: Sequence[dict[str, Any]], first: int, step_s: float) -> list[Layer]:
    timed: list[tuple[float, dict[str, Any], float, list[Tensor]]] = []
    for at, gradients in enumerate(_gradients(raws)):
        tensors: list[Tensor] = []
        for tensor, seen in gradients:
            ready_s = _ready_s(seen, first)
            if ready_s is not None:
                facts = {key: tensor[key] for key in ("name", "elements", "bytes", "dtype")}
                tensors.append(Tensor(**facts, ready_s=ready_s))
        if tensors:
            tensors.sort(key=lambda tensor: tensor.ready_s)
            forward_s = _slowest_median(raw["layers"][at]["forward_s"][first:] for raw in raws)
            timed.append((tensors[-1].ready_s, raws[0]["layers"][at], forward_s, tensors))
    timed.sort(key=lambda entry: entry[0])

    layers: list[Layer] = []
    previous_s = 0.0
    for ready_s, layer, forward_s, tensors in timed:
        backward_s, previous_s = ready_s - previous_s, ready_s
        layers.append(
            Layer(
                name=layer["name"],
                kind=layer["kind"],
                parameters=sum(tensor.elements for tensor in tensors),
                grad_bytes=sum(tensor.bytes for tensor in tensors),
                forward_s=forward_s,
                backward_s=backward_s,
                ready_s=ready_s,
                share=(forward_s + backward_s) / step_s,
                tensors=tensors,
            )
        )
    return layers
