"""Sentences that several formats share: fabric, cost model, contention, bounds, environment, failures, laggards.

Each sentence is plain text made from a record's parts. It shows a measured quantity beside the requested one, and says
that a prediction is simulated.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from xbench import records
from xbench.host_tuning import VARIABLE
from xbench.modes import mode_info
from xbench.spec import RunSpec
from xbench.text import and_of, counted
from xbench.units import format_bytes, format_count, format_percent, format_rate, format_seconds, format_signed_percent

LONG_S = 1e-3
"""Duration [s] from which an emulated collective's lateness is given as a share; shorter ones have it in seconds."""

MEDIANS_APART = 0.02
"""Share above which the difference between the medians with and without instruments is explained."""

PLAN_COLUMNS = (
    "step: what the model predicts; exposed: its part beyond compute alone; gap: how much longer the step is than "
    "with the best schedule here."
)
COST_COLUMNS = (
    "transfer: of the slowest rank, once all have arrived; wait: for the last to arrive, not part of it; fit: the "
    "fitted line over transfer, minus one."
)


def workload_line(workload: records.WorkloadRecord) -> str:
    """Format a workload: 'resnet18: batch 8 of 3×128×128 images, fp32, sgd; 11.7 M parameters in 62 tensors, …'."""
    return (
        f"{workload.title}: {workload.training}; "
        f"{format_count(workload.parameters)} parameters in {counted(workload.tensors, 'tensor')}, "
        f"{format_bytes(workload.grad_bytes)} of gradients a step"
    )


def fabric_line(fabric: records.FabricRecord) -> str:
    """Describe the connection between the ranks, as requested and as measured."""
    ranks = counted(fabric.ranks_per_host, "rank")
    hosts = f"{fabric.hosts} hosts of {ranks}" if fabric.hosts > 1 else f"1 host of {ranks}"
    running = fabric.hosts * fabric.ranks_per_host
    if fabric.label == "emulated":
        stand = "stands" if running == 1 else "stand"
        return f"{fabric.spec} (emulated): {ranks} on this machine, which {stand} for {fabric.world_size} workers"
    parts = [f"{fabric.spec} ({fabric.label}): {hosts} over {fabric.backend}"]
    if fabric.rate_bps is not None:
        parts.append(f"asked for {format_rate(fabric.rate_bps)}")
    if fabric.measured_bps is not None:
        parts.append(f"measured {format_rate(fabric.measured_bps)} in one TCP stream")
    if fabric.allreduce_bps is not None:
        parts.append(f"{format_rate(fabric.allreduce_bps)} bus bandwidth in the largest all-reduce")
    return ", ".join(parts)


def workload_pair(workload: records.WorkloadRecord, times: str = "") -> tuple[str, str]:
    """Return the workload as a pair of a name and a sentence."""
    return ("workload", workload_line(workload) + times)


def fabric_pairs(fabric: records.FabricRecord) -> list[tuple[str, str]]:
    """Return facts on the connection between the ranks, as requested and as measured."""
    return [("fabric", fabric_line(fabric)), *(("", note) for note in fabric.notes)]


def ratio_text(value: float, interval: tuple[float, float] | None) -> str:
    """Format a ratio as '0.891 [0.872, 0.910]', or as '0.891' without an interval."""
    return f"{value:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval is not None else "")


def is_usual(note: str) -> bool:
    """True if a fabric's note is on the usual setup of ranks, which says nothing about this result."""
    return note.startswith("TCP congestion control: ")


def tuning_line(spec: RunSpec) -> str | None:
    """Describe the effect of host tuning on CPU ranks; None for other ranks, and if the record does not say."""
    if spec.device != "cpu" or spec.host_tuning is None:
        return None
    if not spec.host_tuning:
        return f"off ({VARIABLE}=off): memory and threads of the ranks are as the system has them"
    return "ranks keep freed memory, and raise the priority of Gloo's sending threads where that is allowed"


def emulated_line(link: records.EmulatedLink) -> str:
    """Describe an emulated link and its median error over the durations tried."""
    model = link.model
    text = (
        f"asked for {format_seconds(model.alpha_s)} + {_per_mib(model.beta_s_per_byte)} a MiB"
        + (f" and {model.world_size} workers, as in {link.source}" if link.source else "")
        + (", contention included" if link.contention is not None else "")
        + (f", computation beside a collective {link.slowdown:g} times as long" if link.slowdown is not None else "")
    )
    if all(point.asked_s <= 0 for point in link.calibration):
        return text
    long = [point.got_s / point.asked_s - 1 for point in link.calibration if point.asked_s >= LONG_S]
    short = [point.got_s - point.asked_s for point in link.calibration if point.asked_s < LONG_S]
    if long:
        text += f"; from {format_seconds(LONG_S)} up {format_percent(statistics.median(long), 2)} late"
    if short:
        text += f", below it {format_seconds(statistics.median(short), 2)}"
    return f"{text} (calibrated by itself, median)"


def seconds_text(seconds: float, interval: tuple[float, float] | None) -> str:
    """Format a time as '1.23 s [1.21 s, 1.25 s]', or as '1.23 s' without an interval."""
    ends = f" [{', '.join(map(format_seconds, interval))}]" if interval is not None else ""
    return f"{format_seconds(seconds)}{ends}"


def step_line(step: records.StepTimes, label: records.Label) -> str:
    """Describe the step without instruments: the headline of a profile in every format."""
    took = seconds_text(step.uninstrumented_step_s, step.uninstrumented_ci95)
    return f"A step without communication takes {took} ({label})."


def input_line(step: records.StepTimes) -> str:
    """Describe the part of a step without communication that waits for a loader."""
    share = format_percent(step.input_s / step.uninstrumented_step_s, 0)
    return f"a step without communication waits {format_seconds(step.input_s)} ({share}) for its batches"


def cost_line(model: records.CostModel) -> str:
    """Describe the fitted T(M) with its intervals and worst residual, and its segments if one line does not fit."""
    who = "emulated workers" if model.backend == "emulated" else "ranks"
    text = (
        f"{model.collective} over {model.world_size} {who} takes {seconds_text(model.alpha_s, model.alpha_ci95)} + "
        f"{_per_mib(model.beta_s_per_byte)} [{', '.join(map(_per_mib, model.beta_ci95))}] a MiB; worst residual "
        f"{format_percent(model.max_relative_residual, 0)}"
    )
    if len(model.segments) > 1 and model.segmented_max_relative_residual is not None:
        text += f" ({format_percent(model.segmented_max_relative_residual, 0)} as {len(model.segments)} segments)"
    return text


def waits_line(model: records.CostModel) -> str:
    """Describe how long the first rank waited for the last (median over sizes), and the error of the ranks' clocks."""
    wait_s = statistics.median(point.wait_s for point in model.points)
    text = f"The first rank waited {format_seconds(wait_s)} for the last (median over sizes)"
    if model.clock_error_s:
        offset_s = max(model.clock_offset_s, key=abs, default=0.0)
        text += (
            f"; the ranks' clocks differ by up to {format_seconds(abs(offset_s))}, known to within "
            f"±{format_seconds(model.clock_error_s)}"
        )
    return text + "."


def contention_line(measured: records.Contention | None, *, simulated: bool = False) -> str | None:
    """Describe how all-reduces and computation slow each other, over the measured sizes; None without measurements.

    `simulated` is True if a what-if changed the contention.
    """
    if measured is None or not measured.points or any(point.alone_s <= 0 for point in measured.points):
        return None
    sizes = [point.nbytes for point in measured.points]
    slower = [max(1.0, point.loaded_s / point.alone_s) for point in measured.points]
    slowed = [max(1.0, point.compute_slowdown) for point in measured.points]
    return (
        f"an all-reduce of {format_bytes(min(sizes))} to {format_bytes(max(sizes))} takes {_times(slower)} as long "
        f"while the device computes, and computation {_times(slowed)} as long beside one"
        + (" (simulated)" if simulated else "")
    )


def launches_line(measured: records.Contention | None) -> str | None:
    """Describe the host's time of launches on a GPU, and whether the step is launch-bound; None if not measured."""
    if measured is None or measured.launch_bound is None:
        return None
    host, device = format_seconds(measured.host_step_s), format_seconds(measured.device_step_s)
    bound = (
        "launch-bound, so predictions add launches and hooks to it"
        if measured.launch_bound
        else "not launch-bound, so predictions take launches and hooks as free"
    )
    return (
        f"launching a collective takes the host {format_seconds(measured.launch_s)}, a gradient's hook "
        f"{format_seconds(measured.hook_s)}; a step takes the host {host} and the device {device}: {bound}"
    )


def left_out_line(spec: RunSpec, measured: records.Contention | None) -> str | None:
    """Describe what predictions for a GPU leave out; None for another device."""
    if spec.device != "cuda":
        return None
    bound = measured.launch_bound if measured is not None else None
    launches = " and host time of launches," if bound is None else ""
    but = "" if bound else "; ready times measured while gradients travel have part of it"
    return (
        "predictions do not model what collectives and computation take from each other on a GPU (multiprocessors, "
        f"memory), copies into buckets,{launches} and optimizer calls for single buckets{but}"
    )


def bounds_line(bounds: records.Bounds, modes: Mapping[str, records.ModeResult] | None = None) -> str:
    """Describe the lower bounds of a step for any schedule of one job, under the model.

    A bound is called a reference where the whole interval of one of the measured `modes` is below it.
    """
    below = [name for name, mode in (modes or {}).items() if is_below(mode, bounds)]
    claim = "the model's reference is" if below else "no schedule of one job can beat"
    parts = (
        f"compute alone {format_seconds(bounds.compute_s)}, all gradients in one collective "
        f"{format_seconds(bounds.communication_s)}; {claim} "
        f"{format_seconds(bounds.backward_overlap_bound_s)} a step"
    )
    if format_seconds(bounds.overlap_bound_s) != format_seconds(bounds.backward_overlap_bound_s):
        parts += (
            f" while the next forward waits for all gradients, {'and' if below else 'nor'} "
            f"{format_seconds(bounds.overlap_bound_s)} when it may start before they have arrived"
        )
    if below:
        parts += f". It is no bound: {and_of(below)} took less, so the model is too slow here"
    return f"{parts} (simulated)"


def is_below(mode: records.ModeResult, bounds: records.Bounds) -> bool:
    """True if the whole measured interval is below the mode's bound, for a mode of one job that the bound is of."""
    info = mode_info(re.split("[:@]", mode.mode)[0])
    if mode.step_s is None or info.paired or info.reducer == "none" or not info.is_bounded:
        return False
    return mode.step_s.ci95[1] < bounds.of(ahead=runs_ahead(mode))


def runs_ahead(result: records.ModeResult) -> bool:
    """True if the mode's next forward pass may start before all gradients have arrived."""
    carrier = (result.plan.carrier or result.plan.mode) if result.plan is not None else result.mode.partition("@")[0]
    return mode_info(carrier).puts_off


MEMORY = "Memory of the fullest rank in a step; a peak is the allocator's, or, marked (sum), the sum of the four parts"


def columns_line(record: records.Comparison) -> str:
    """Explain the less obvious columns of a comparison."""
    text = "exposed: the step beyond compute alone"
    if any(mode.removed_share is not None for mode in record.modes.values()):
        text += "; removed: share of what ddp leaves exposed and overlap could remove, 100 % is the bound"
        ahead = [mode.mode for mode in record.modes.values() if mode.removed_share is not None and runs_ahead(mode)]
        if ahead:
            text += f" (of {and_of(ahead)} the one for a next forward that may start before all gradients have arrived)"
    shares = [mode.removed_share for mode in record.modes.values() if mode.removed_share is not None]
    text += ", < 0 % slower than ddp" if any(share < 0 for share in shares) else ""
    text += ", > 100 % below what the model calls possible" if any(share > 1 for share in shares) else ""
    by_hand = any(
        mode.parity is not None and mode.parity.reference == records.BY_HAND for mode in record.modes.values()
    )
    what = f"{records.BY_HAND} trains, since DDP cannot train this model" if by_hand else "ddp trains"
    return f"{text}; same network: trains what {what}, bit for bit alike on all ranks."


def not_shown_lines(record: records.Comparison) -> list[str]:
    """Explain in one sentence per reason why timed modes are not shown to train the same network."""
    modes: dict[str, list[str]] = {}
    for result in record.modes.values():
        if result.parity is not None and result.parity.ok and not result.parity.shown:
            modes.setdefault(result.parity.message or "no reason was recorded", []).append(result.mode)
    return [f"Same network: not shown for {and_of(names)}: {why.rstrip('.')}." for why, names in modes.items()]


def effort_line(record: records.Comparison) -> str:
    """Describe how often each thing was repeated, from the samples themselves."""
    launches = len({sample.launch for sample in record.samples})
    rounds = len({(sample.launch, sample.round) for sample in record.samples})
    steps = Counter(len(sample.steps_s) for sample in record.samples)
    if not steps:
        return "no block was finished"
    few, many = min(steps), max(steps)
    flagged = sum(sample.outlier for sample in record.samples)
    text = (
        f"{counted(launches, 'launch', 'launches')}, {counted(rounds, 'round')} in all, "
        f"{counted(len(record.samples), 'block')} of {few if few == many else f'{few} to {many}'} steps; modes in "
        "balanced order"
    )
    return text + (f"; {counted(flagged, 'block')} flagged as outlying, and kept" if flagged else "")


def environment_line(environment: records.Environment) -> str:
    """Describe machine and software in one line."""
    device = "" if environment.device == "cpu" else f", {environment.device_count} × {environment.device}"
    commit = f" ({environment.commit[:10]})" if environment.commit else ""
    if not environment.cores:
        return f"{environment.hostname}{device}, read by xbench {environment.xbench}"
    return (
        f"{environment.hostname}: {environment.cpu}, {counted(environment.cores, 'core')}, "
        f"{format_bytes(environment.memory_bytes)}{device}; Python {environment.python}, "
        f"torch {environment.torch or 'not installed'}, xbench {environment.xbench}{commit}"
    )


def failures_line(record: records.Comparison) -> str | None:
    """Say how many modes have no time, and why the first has none; None if all have one."""
    failures = failure_lines(record)
    if not failures:
        return None
    have = "has" if len(failures) == 1 else "have"
    rest = f" The report names {counted(len(failures) - 1, 'other reason')}." if len(failures) > 1 else ""
    return (
        f"INCOMPLETE: {len(failures)} of {counted(len(record.modes), 'mode')} {have} no time. "
        f"{failures[0].rstrip('.')}.{rest}"
    )


def failure_lines(record: records.Comparison) -> list[str]:
    """Say for each mode without a time why it has none."""
    return [line for line in map(failure_line, record.modes.values()) if line is not None]


def failure_line(result: records.ModeResult) -> str | None:
    """Say why a mode has no time: it failed, or it failed the parity check. None for a mode that has one."""
    parity = result.parity
    if parity is None or parity.ok:
        why = result.error or "no reason was recorded"
        return f"{result.mode} FAILED: {why}" if result.status == "failed" else None
    layer = f" in {parity.worst_parameter}" if parity.worst_parameter else ""
    size = "unknown" if parity.max_relative_difference is None else f"{parity.max_relative_difference:.2g}"
    what = parity.message or f"after {parity.steps} steps the largest relative difference{layer} is {size}"
    ranks = "" if parity.bitwise_across_ranks else "; ranks differ from each other"
    against = "its own steps taken again" if result.mode == parity.reference else parity.reference
    return (
        f"{result.mode} FAILED the parity check against {against} (tolerance {parity.tolerance:g}), so its time is "
        f"not shown: {what}{ranks}"
    )


def band_line(record: records.Scaling) -> str:
    """Describe the known error of predicted steps, and how it grows with the number of workers."""
    band = record.error_band
    where = "a" if band.workers is None else f"on {band.workers} workers a"
    low, high = f"{1 / (1 + band.share):.2f}", f"{1 / (1 - band.share):.2f}"
    more = ""
    if band.growth is not None and band.growth_source is not None:
        more = f" Each doubling of the workers adds {format_percent(band.growth)}: {band.growth_source}."
    return (
        f"Error band: {where} measured step would take {low} to {high} times what is shown, if predictions are off by "
        f"up to {format_percent(band.share)}: {band.source}.{more}"
    )


def _times(slowdowns: Sequence[float]) -> str:
    """Format slow-downs as '1.05 to 1.86 times' or '1.2 times'."""
    low, high = f"{min(slowdowns):.3g}", f"{max(slowdowns):.3g}"
    return f"{low} times" if low == high else f"{low} to {high} times"


def _per_mib(seconds_per_byte: float) -> str:
    return format_seconds(seconds_per_byte * 1024**2)


def parts_line(step: records.StepTimes) -> str:
    """Describe the instrumented step and its parts."""
    fed = f"input {format_seconds(step.input_s)}, " if step.input_s else ""
    earlier = ""
    if step.micro_steps > 1:
        earlier = f"{counted(step.micro_steps - 1, 'micro-step')} {format_seconds(step.accumulate_s)}, then "
    return (
        f"With instruments it takes {seconds_text(step.step_s, step.step_ci95)}: {fed}{earlier}forward "
        f"{format_seconds(step.forward_s)}, backward {format_seconds(step.backward_s)}, optimizer "
        f"{format_seconds(step.optimizer_s)}."
    )


def instruments_line(step: records.StepTimes) -> str:
    """Describe the cost of the instruments, from paired steps, and any disagreement of the two unpaired medians."""
    cost, low, high = map(format_signed_percent, (step.overhead_ratio, *step.overhead_ci95))
    text = f"Instruments cost {cost} [{low}, {high}], by pairs of neighbouring steps."
    apart = step.step_s / step.uninstrumented_step_s - 1
    if abs(apart - step.overhead_ratio) > MEDIANS_APART:
        text += (
            f" The two medians differ by {format_signed_percent(apart)}: they are not of pairs, and the machine's "
            "speed may have changed in between."
        )
    return text


MAX_STRAGGLERS = 3
"""Ranks with a sentence of their own, those with the largest lags."""

PART_NAMES: dict[records.StepPart, str] = {"input": "its input", "forward": "forward", "backward": "backward",
                                   "optimizer": "its optimizer"}  # fmt: skip
"""Parts of a step in a sentence."""


def straggler_lines(found: records.Stragglers | None) -> list[str]:
    """Return a sentence for each slow rank and link, the largest lag first; one counts those beyond MAX_STRAGGLERS."""
    if found is None:
        return []
    lines = [rank_line(one) for one in found.ranks[:MAX_STRAGGLERS]]
    more = [str(one.rank) for one in found.ranks[MAX_STRAGGLERS:]]
    if more:
        who = f"Rank {more[0]} holds" if len(more) == 1 else f"Ranks {and_of(more)} hold"
        lines.append(f"{who} them back too, by less.")
    return [*lines, *map(link_line, found.links)]


def rank_line(slow: records.SlowRank) -> str:
    """Describe a slow rank: 'Rank 1 (host 1) holds the others back: backward from fc on, 62.0 ms a step (17 %).'."""
    who = f"Rank {slow.rank}" + (f" ({slow.host})" if slow.host is not None else "")
    parts = [PART_NAMES[part] for part in slow.parts]
    if parts and slow.layer is not None:
        parts[0] += f" from {slow.layer} on"
    where = and_of(parts) if parts else "its step"
    said = (
        f"{who} holds the others back: {where}, {format_seconds(slow.lag_s)} a step ({format_percent(slow.share, 0)})"
    )
    if slow.waited_share is not None:
        waited = format_percent(slow.waited_share, 0)
        return f"{said}. It waited {waited} of the time for a processor: free its cores from other work."
    return f"{said}: prefetch it, or give its loader more workers." if slow.parts[:1] == ["input"] else f"{said}."


def link_line(slow: records.SlowLink) -> str:
    """Describe a slow link, its rate and the others', and what it costs a step."""
    who = f"The link of {slow.hosts[0]}" if len(slow.hosts) == 1 else f"The link between {and_of(slow.hosts)}"
    beside = f"of the {format_rate(slow.typical_bps)} asked for"
    if not slow.typical_is_asked:
        beside = f"where other links carry {format_rate(slow.typical_bps)}"
    return (
        f"{who} holds the others back: {format_rate(slow.rate_bps)} {beside}, {format_seconds(slow.lag_s)} for all "
        f"gradients of a step ({format_percent(slow.share, 0)}): check the speed it has negotiated, and its errors."
    )


def made_at(created: str) -> str:
    """Format a record's time as '2026-11-22 04:54 UTC'; other text is returned as it is."""
    try:
        at = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{at:%Y-%m-%d %H:%M}{' UTC' if at.utcoffset() == timedelta(0) else ''}"
