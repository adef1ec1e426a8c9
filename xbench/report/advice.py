"""Advice after a record: what to do next, and the command for it. Every format and command shows the same advice.

The terminal, the page, Markdown, `xbench plan` and `xbench tune` all use this module. For plans, it recommends the mode
with the shortest predicted step. Among modes that are equally good, it prefers the one that changes least in a training
script. For a comparison, it recommends the mode that was measured fastest and says how to get it into a script. It also
names modes that were not run although their plans are predicted to be faster still.

Modes that update parameters in the next forward pass change more in a script. They are named as such, and recommended
only where `auto:forward` was planned.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from xbench.host_tuning import VARIABLE
from xbench.modes import TUNED_DDP as TUNED
from xbench.modes import mode_info, next_forward_modes
from xbench.planning.plans import bucket_caps_mib
from xbench.records import Bounds, Comparison, ModeResult, Plan, Profile, Ratio, of_kind
from xbench.report import snippets
from xbench.report.answer import controls, is_control, rankings, reference_of
from xbench.report.sentences import ratio_text
from xbench.spec import RunSpec
from xbench.text import and_of, counted
from xbench.units import format_percent, format_seconds

if TYPE_CHECKING:
    from xbench.planning.scenario import Planned

EQUIVALENT = 0.02
"""Relative difference below which steps are equally good, as in a comparison's verdict."""

AS_GOOD = 0.005
"""Relative difference of predictions below which the mode that changes least in a training script is recommended."""

RECORD = "RECORD"
"""Placeholder in commands for a record whose path is not known."""


class Advice(NamedTuple):
    """Sentence and the command that follows from it, if there is one."""

    told: str
    command: str | None = None


class Recorded(NamedTuple):
    """Plans of one step that a record holds, and its bounds."""

    plans: Mapping[str, Plan]
    bounds: Bounds | None


Foreseen: TypeAlias = "Recorded | Planned"


def of_profile(record: Profile) -> list[Advice]:
    """Return the advice after a profile, the most important first."""
    if record.cost_model is None:
        if not record.plans or record.spec.fabric.world_size > 1:
            return []
        told, fabric = "To plan schedules, profile on two:", "local:ranks=2"
        if record.spec.device == "cuda":
            told, fabric = "To plan schedules, profile on an emulated link:", "emulated"
        return [
            Advice("One rank has nobody to send gradients to, so no schedule can be recommended."),
            Advice(told, command_for(record.spec, "profile", {"--fabric": fabric})),
        ]
    foreseen = Recorded(record.plans, record.bounds)
    if fastest(foreseen) is None:
        return []
    return [Advice(recommendation(foreseen)), *following_modes(foreseen, record)]


def following_modes(foreseen: Foreseen, record: Profile | Comparison) -> list[Advice]:
    """Advise the gain of next-forward updates, and the command that proves the predictions made from a record.

    There is no such command for a traced run, nor for a record whose link or device was replaced in a what-if. Empty if
    only controls were planned.
    """
    choice = fastest(foreseen)
    if choice is None:
        return []
    further = faster_next_forward(foreseen, choice)
    found = next_forward_advice(foreseen, choice, further)
    profile = of_kind(record, Profile)
    if record.fabric.label == "simulated" or (profile is not None and profile.traced is not None):
        return found
    modes = dict.fromkeys(["ddp", choice if choice != "ddp" else "auto", *further])
    return [*found, Advice("To prove what is predicted:", compare_command(record.spec, list(modes)))]


def of_comparison(record: Comparison, place: str) -> list[Advice]:
    """Return the advice after a comparison, the most important first; `place` is the record's path in commands."""
    paste = what_to_paste(record)
    if paste is None:
        return []
    best = rankings(record)[-1][0]
    proven = best.ratio is not None and best.ratio.verdict == "faster"
    use = best.mode if proven else record.reference
    command = _emit(record, best, place) if proven and paste.code is not None else None
    told = paste.told if command is not None else f"{paste.told.rstrip('.:')}."
    found = [Advice(told, command)]
    ratios = {
        name: result.ratio
        for name, result in record.modes.items()
        if result.ratio and result.is_trusted and reference_of(record, result) == "ddp"
    }
    buckets = in_ddp(use, ratios, place, _job(record)) if can_be_planned(record) else []
    return [*found, *buckets, *not_run(record, use)]


def can_be_planned(record: Comparison) -> bool:
    """True if `xbench plan` takes the record."""
    return record.spec.compress is None and record.cost_model is not None


def in_ddp(winner: str, ratios: Mapping[str, Ratio], place: str, more: str = "") -> list[Advice]:
    """Advise the buckets of `ddp-tuned` to users who stay with DistributedDataParallel, if they were proven faster.

    `ratios` are to ddp.
    """
    ratio = ratios.get(TUNED)
    if winner == TUNED or ratio is None or ratio.verdict != "faster":
        return []
    return [
        Advice(
            "To change one argument of DistributedDataParallel and not the loop: "
            f"{TUNED} takes {ratio_text(ratio.value, ratio.ci95)} of ddp's time.",
            f"xbench plan {shlex.quote(place)} --emit ddp --mode {TUNED}{more}",
        )
    ]


def not_run(record: Comparison, use: str) -> list[Advice]:
    """Advise modes that were not timed and whose plans are predicted to beat that of the mode in use.

    A predicted gain counts if it is larger than the errors of the predictions for `ddp` and for the mode in use.
    """
    if not record.jobs or len(set(record.spec.workloads)) > 1:
        return []
    plans, ran = record.jobs[0].plans, {mode.carrier for mode in record.spec.modes if not mode.paired}
    used = next((mode for mode in record.spec.modes if mode.text == use), None)
    carrier = used.carrier if used is not None and used.carrier in plans else "ddp"
    if carrier not in plans or (used is not None and used.paired):
        return []
    foreseen, errors = Recorded(plans, record.bounds), errors_of(record, {"ddp", carrier})
    off = max(errors.values(), default=0.0)
    further = faster_next_forward(foreseen, carrier, ran, max(EQUIVALENT, off))
    if not further:
        return []
    modes = dict.fromkeys(["ddp", carrier, *further])
    (told,) = next_forward_advice(foreseen, carrier, further)
    by = f"{'up to ' if len(errors) > 1 else ''}{format_percent(off)}"
    band = f" The predictions for {and_of(list(errors))} were off by {by}." if errors else ""
    return [Advice(f"Not run: {told.told}{band}", compare_command(record.spec, list(modes)))]


def errors_of(record: Comparison, carriers: Collection[str]) -> dict[str, float]:
    """Return how far one job's predictions for `carriers` were off, as a share of the step, by mode."""
    names = [mode.text for mode in record.spec.modes if not mode.paired and mode.carrier in carriers]
    tested = {name: record.modes[name] for name in names if name in record.modes and record.modes[name].is_trusted}
    return {name: abs(one.prediction_error) for name, one in tested.items() if one.prediction_error is not None}


def faster_next_forward(
    foreseen: Foreseen, choice: str, ran: Collection[str] = (), least: float = EQUIVALENT
) -> list[str]:
    """Return next-forward modes whose predicted step is shorter than that of `choice` by at least the share `least`."""
    plans = foreseen.plans
    most_s = plans[choice].predicted_step_s * (1 - least)
    steps_s = {mode: plans[mode].predicted_step_s for mode in next_forward_modes() if mode in plans}
    found = [mode for mode in steps_s if mode not in ran and mode != choice and steps_s[mode] <= most_s]
    return sorted(found, key=steps_s.__getitem__)


def next_forward_advice(foreseen: Foreseen, choice: str, further: Sequence[str]) -> list[Advice]:
    """Describe the predicted steps of next-forward modes in one sentence, if there are any."""
    if not further:
        return []
    steps_s = [foreseen.plans[mode].predicted_step_s for mode in further]
    own_s = foreseen.plans[choice].predicted_step_s
    less = [format_percent(1 - step_s / own_s) for step_s in steps_s]
    update, are = ("updates", "is") if len(further) == 1 else ("update", "are")
    return [
        Advice(
            f"{and_of(further)} {update} parameters in the next forward pass, and {are} predicted to take "
            f"{and_of([format_seconds(s) for s in steps_s])} a step, {and_of(less)} less than {choice} (simulated)."
        )
    ]


def recommendation(foreseen: Foreseen) -> str:
    """Say in one sentence which mode to use and its predicted gain."""
    choice = fastest(foreseen)
    if choice is None:
        return "Only the control was planned, so there is nothing to recommend."
    plans, step_s = foreseen.plans, foreseen.plans[choice].predicted_step_s
    bound_s = bound_of(foreseen, choice)
    bound = "" if bound_s is None else f"{format_percent(above(step_s, bound_s))} above the bound"
    if "ddp" not in plans:
        return f"{choice} is predicted fastest: {format_seconds(step_s)} a step{bound and f', {bound}'} (simulated)."
    ddp_s = plans["ddp"].predicted_step_s
    if choice == "ddp":
        return (
            f"Keep ddp as it comes: no other mode is predicted to take less than its {format_seconds(ddp_s)} a step by "
            "an amount that matters (simulated)."
        )
    gain = format_percent(1 - step_s / ddp_s) if ddp_s > 0 else "–"
    if not changes_enough(foreseen, choice):
        return f"Keep ddp as it comes: {choice}, the fastest, is predicted to take only {gain} less a step (simulated)."
    return (
        f"Use {choice}: predicted {format_seconds(step_s)} a step, {gain} less than ddp's {format_seconds(ddp_s)}"
        f"{bound and f' and {bound}'} (simulated)."
    )


def fastest(foreseen: Foreseen) -> str | None:
    """Return the mode with the shortest predicted step; among equally good ones, the one that changes a script least.

    Return None if only controls were planned. Next-forward modes take part only if `searches_ahead`, or if nothing else
    was planned.
    """
    plans = {mode: plan for mode, plan in foreseen.plans.items() if not is_control(mode)}
    if not searches_ahead(foreseen):
        plans = {mode: plan for mode, plan in plans.items() if not mode_info(mode).puts_off} or plans
    limit_s = min((plan.predicted_step_s for plan in plans.values()), default=0.0) * (1 + AS_GOOD)
    good = [mode for mode, plan in plans.items() if plan.predicted_step_s <= limit_s]
    return min(good, key=lambda mode: (mode_info(mode).script_change, plans[mode].predicted_step_s), default=None)


def searches_ahead(foreseen: Foreseen) -> bool:
    """True if a search with modes of the next forward pass was asked for, so that these may be recommended."""
    return any(mode_info(mode).searches == "next_forward" for mode in foreseen.plans)


def changes_enough(foreseen: Foreseen, choice: str) -> bool:
    """True if a mode's predicted gain over DDP is large enough to change a script for it."""
    ddp = foreseen.plans.get("ddp")
    return ddp is None or foreseen.plans[choice].predicted_step_s <= ddp.predicted_step_s * (1 - EQUIVALENT)


def above(step_s: float, bound_s: float) -> float:
    """Return by which share a step exceeds the bound. It is never negative, even after rounding."""
    return max(0.0, step_s / bound_s - 1) if bound_s > 0 else 0.0


def bound_of(foreseen: Foreseen, mode: str) -> float | None:
    """Return the lower bound [s] of a mode's step for its overlap; None if no link was measured."""
    if foreseen.bounds is None:
        return None
    carried_ahead = mode_info(foreseen.plans[mode].carrier or mode).puts_off
    return foreseen.bounds.overlap_bound_s if carried_ahead else foreseen.bounds.backward_overlap_bound_s


def compare_command(spec: RunSpec, modes: Sequence[str]) -> str:
    """Return the command that times these modes under the conditions of a run."""
    return command_for(spec, "compare", {"--modes": ",".join(modes)})


def command_for(spec: RunSpec, command: str, asked: Mapping[str, str]) -> str:
    """Return a command for the workload and conditions of a run; options in `asked` override them."""
    workload = spec.workloads[0]
    options = {
        **asked,
        "--batch-size": workload.batch_size,
        "--image-size": workload.image_size,
        "--seq-len": workload.seq_len,
        "--dtype": workload.dtype if workload.dtype != "fp32" else None,
        "--optimizer": workload.optimizer if workload.optimizer != "sgd" else None,
        "--optimizer-impl": workload.optimizer_impl if workload.optimizer_impl != "default" else None,
        "--accumulate": workload.accumulate if workload.accumulate > 1 else None,
        "--amp": workload.amp,
        "--checkpoint": workload.checkpoint,
        "--clip": f"{workload.clip:g}" if workload.clip is not None else None,
        "--seed": workload.seed or None,
        "--fabric": str(spec.fabric) if spec.fabric.name != "cluster" else None,
        "--device": f"cuda:{spec.gpu}" if spec.gpu is not None else None,
        "--compress": spec.compress,
        **asked,
    }
    words = [word for flag, value in options.items() if value is not None for word in (flag, str(value))]
    setting = f"{VARIABLE}=off " if spec.host_tuning is False else ""
    return setting + shlex.join(["xbench", command, workload.name, *words])


def _emit(record: Comparison, best: ModeResult, place: str) -> str | None:
    """Return the command that prints the winner's lines, or None if `xbench plan` cannot plan this record."""
    used = next((mode for mode in record.spec.modes if mode.text == best.mode), None)
    if used is None or not can_be_planned(record) or used.carrier == "ddp":
        return None
    if mode_info(used.carrier).plans_units:
        return f"xbench plan {shlex.quote(place)} --emit python --mode {shlex.quote(used.text)}"
    if mode_info(used.carrier).planner is None:
        return None
    what = "ddp" if used.carrier == TUNED else "python"
    return f"xbench plan {shlex.quote(place)} --emit {what} --mode {used.carrier}{_job(record)}"


def _job(record: Comparison) -> str:
    """Return the option for the first job, because a plan belongs to one job; empty if all jobs are equal."""
    return " --job 1" if len(set(record.spec.workloads)) > 1 else ""


class ScriptChange(NamedTuple):
    """Change to make in a training script. `code` is None if no change is needed or if no line makes it."""

    told: str
    code: str | None = None


def units_lines(record: Comparison, result: ModeResult) -> str:
    """Return the lines that wrap the units of a mode that planned them."""
    told = counted(len(result.units), "unit")
    if result.ratio is not None:
        told += f", {ratio_text(result.ratio.value, result.ratio.ci95)} of {reference_of(record, result)}'s time"
    sums, tuned = record.spec.backend == "gloo", record.spec.tunes_ranks
    return snippets.units_snippet(result.mode, result.units, told, sums=sums, tuned=tuned)


def what_to_paste(record: Comparison) -> ScriptChange | None:
    """Return the change that follows from the answer; None if no two modes that may be advised can be compared."""
    questions = rankings(record)
    order = questions[-1] if questions else []  # the last question is about one job, if a one-job mode ran
    if len(order) < 2:
        return None
    best, reference = order[0], reference_of(record, order[0])
    if reference in controls(record):
        return None
    if best.ratio is None:  # the reference has no time
        return None
    undecided = any(result.ratio is not None and result.ratio.verdict == "inconclusive" for result in order)
    if best.ratio.verdict != "faster" and undecided:
        return ScriptChange(f"Stay with {reference} until more launches decide.")
    if best.ratio.verdict != "faster":
        return ScriptChange(f"Nothing to change: stay with {reference}.")
    spec = next((mode for mode in record.spec.modes if mode.text == best.mode), None)
    if spec is not None and spec.paired:
        return ScriptChange(
            f"Nothing to paste: {best.mode} is a way in which two jobs share devices, not a line of one job."
        )
    carrier = spec.name if spec is not None else best.mode
    schedule = best.plan.carrier or best.plan.mode if best.plan is not None else carrier
    if not snippets.is_schedule(schedule):
        return ScriptChange(f"Nothing to paste: {schedule!r} is no schedule of this xbench.")
    if best.plan is None and mode_info(carrier).plans_units:
        code = units_lines(record, best)
        return ScriptChange(f"Wrap the units of {best.mode} by fully_shard, before the optimizer is made:", code)
    if best.plan is None:
        named = best.mode.partition("@")[0]
        told = f"Use xbench.attach(model, optimizer, schedule={snippets.quoted(named)}): it takes no plan."
        return ScriptChange(
            told + (" Call xbench.tune_host() too, as in the measurement." if record.spec.tunes_ranks else "")
        )
    if carrier == "ddp" or snippets.is_plain_ddp(best.plan):
        return ScriptChange(f"{best.mode} took DistributedDataParallel as it comes:", snippets.PLAIN_DDP)
    count, ratio = counted(len(best.plan.buckets), "bucket"), ratio_text(best.ratio.value, best.ratio.ci95)
    told = f"{count}, {ratio} of {reference}'s time per sample ({best.label})"
    tuned = record.spec.tunes_ranks
    if mode_info(carrier).reducer == "ddp":
        code = snippets.ddp_snippet(best.plan, bucket_caps_mib(best.plan), told, tuned=tuned)
        return ScriptChange(f"Give DistributedDataParallel the buckets of {best.mode}:", code)
    later = " It updates parameters in the next forward pass: call handle.finish() before anything else reads them."
    put_off = later if mode_info(best.plan.carrier or carrier).puts_off else ""
    code = snippets.attach_snippet(
        best.plan, told=told, tuned=tuned, workload=record.spec.workloads[0], device=record.spec.device
    )
    return ScriptChange(f"Put {best.mode} under the training loop.{put_off}", code)
