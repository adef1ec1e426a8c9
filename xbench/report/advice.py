"""What to do after a record, and the command to type: the same whichever door one comes by.

The terminal, the page, Markdown, `xbench plan` and `xbench tune` all show what `advice` decides here. From plans: the
mode that is predicted fastest; of modes as good as each other the one that changes least in a training script. From a
comparison: the mode that was measured fastest, how to get it into a script, and what was not run although its plan is
predicted to be faster still. Modes that update parameters in the next forward pass are named as such and recommended
only where that was asked for (`--overlap forward`), because they change more in a script.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from xbench.host.tuning import VARIABLE
from xbench.planning.plans import NEXT_FORWARD
from xbench.records import Bounds, Comparison, ModeResult, Plan, Profile, Ratio, Tuned
from xbench.report.answer import is_control, rankings, trusted
from xbench.report.lines import and_of
from xbench.report.paste import what_to_paste
from xbench.spec import Overlap, RunSpec
from xbench.units import format_percent, format_seconds

EQUIVALENT = 0.02
"""Steps this close are as good as each other, as in a comparison's verdict."""

AS_GOOD = 0.005
"""Of modes whose predictions are this close the one that changes least in a training script is recommended."""

LEAST_CHANGE = {
    "ddp": 0, "ddp-tuned": 1, "single": 2, "auto": 3, "optimal": 3, "mgwfbp": 3, "wfbp": 4, "dear": 5, "priority": 5
}  # fmt: skip
"""How much each mode changes in a training script: nothing, an argument, a call, a call with a plan, a call that sends
every gradient by itself, a call after which parameters are updated in the next forward pass."""

TUNED = "ddp-tuned"
UNPLANNED = "horovod"
"""What decides on its buckets while it runs has no plan to print."""

RECORD = "RECORD"
"""What a command calls the record whose path is not known."""


PROVE = "To prove what is predicted:"


class Advice(NamedTuple):
    """A sentence, and the command that follows from it, if there is one."""

    told: str
    command: str | None = None


class Foreseen(Protocol):
    """Plans of one step, what bounds them, and what a recommended mode may overlap."""

    @property
    def plans(self) -> Mapping[str, Plan]:
        """By mode."""

    @property
    def bounds(self) -> Bounds | None:
        """None where no link was measured."""

    @property
    def overlap(self) -> Overlap:
        """As in `Planner`."""


@dataclass(frozen=True)
class Recorded:
    """The plans that a record holds."""

    plans: Mapping[str, Plan]
    bounds: Bounds | None
    overlap: Overlap


def advice(record: Profile | Comparison | Tuned, place: str = RECORD) -> list[Advice]:
    """What to do next, the most important first; `place` is the record's path in commands."""
    if isinstance(record, Profile):
        return _of_profile(record)
    if isinstance(record, Tuned):
        return in_ddp(record.schedule, record.tried, record.record)
    return _of_comparison(record, place)


def _of_profile(record: Profile) -> list[Advice]:
    if record.cost_model is None:
        if not record.plans or record.spec.fabric.world_size > 1:
            return []
        return [
            Advice("One rank has nobody to send gradients to, so no schedule can be recommended."),
            Advice("To plan schedules, profile on two:", typed(record.spec, "profile", {"--fabric": "local:ranks=2"})),
        ]
    foreseen = Recorded(record.plans, record.bounds, record.spec.overlap)
    choice = fastest(foreseen)
    if choice is None:
        return []
    further = ahead(foreseen, choice)
    modes = dict.fromkeys(["ddp", choice if choice != "ddp" else "auto", *further])
    return [
        Advice(recommendation(foreseen)),
        *told_ahead(foreseen, choice, further),
        Advice(PROVE, compare_command(record.spec, list(modes))),
    ]


def _of_comparison(record: Comparison, place: str) -> list[Advice]:
    paste = what_to_paste(record)
    if paste is None:
        return []
    best = rankings(record)[-1][0]
    proven = best.ratio is not None and best.ratio.verdict == "faster"
    use = best.mode if proven else record.reference
    command = _emit(record, best, place) if proven and paste.code is not None else None
    told = paste.told if command is not None else f"{paste.told.rstrip('.:')}."
    found = [Advice(told, command)]
    ratios = {name: result.ratio for name, result in record.modes.items() if result.ratio and trusted(result)}
    return [*found, *in_ddp(use, ratios, place, _job(record)), *not_run(record, use)]


def in_ddp(winner: str, ratios: Mapping[str, Ratio], place: str, more: str = "") -> list[Advice]:
    """How to stay with DistributedDataParallel and gain all the same, where its own buckets were proven faster."""
    ratio = ratios.get(TUNED)
    if winner == TUNED or ratio is None or ratio.ci95[1] >= 1 or ratio.value >= 1:
        return []
    low, high = ratio.ci95
    return [
        Advice(
            f"To change one argument of DistributedDataParallel and not the loop: {TUNED} takes {ratio.value:.3f} "
            f"[{low:.3f}, {high:.3f}] of ddp's time.",
            f"xbench plan {shlex.quote(place)} --emit ddp --mode {TUNED}{more}",
        )
    ]


def not_run(record: Comparison, use: str) -> list[Advice]:
    """Modes that were not timed, and whose plans are predicted to be faster than that of the mode to use."""
    if not record.jobs or len(set(record.spec.workloads)) > 1:
        return []
    plans, ran = record.jobs[0].plans, {mode.carrier for mode in record.spec.modes if not mode.paired}
    used = next((mode for mode in record.spec.modes if mode.text == use), None)
    carrier = used.carrier if used is not None and used.carrier in plans else "ddp"
    if carrier not in plans or (used is not None and used.paired):
        return []
    foreseen = Recorded(plans, record.bounds, record.spec.overlap)
    further = ahead(foreseen, carrier, ran)
    if not further:
        return []
    modes = dict.fromkeys(["ddp", carrier, *further])
    (told,) = told_ahead(foreseen, carrier, further)
    return [Advice(f"Not run: {told.told}", compare_command(record.spec, list(modes)))]


def ahead(foreseen: Foreseen, choice: str, ran: Collection[str] = ()) -> list[str]:
    """Modes of the next forward pass that are predicted to take less than `choice` by an amount that matters."""
    plans = foreseen.plans
    most_s = plans[choice].predicted_step_s * (1 - EQUIVALENT)
    found = [mode for mode in NEXT_FORWARD if mode in plans and mode not in ran and mode != choice]
    return sorted((m for m in found if plans[m].predicted_step_s <= most_s), key=lambda m: plans[m].predicted_step_s)


def told_ahead(foreseen: Foreseen, choice: str, further: Sequence[str]) -> list[Advice]:
    """A sentence of what modes of the next forward pass are predicted to take, if there are any."""
    if not further:
        return []
    steps_s = [foreseen.plans[mode].predicted_step_s for mode in further]
    own_s = foreseen.plans[choice].predicted_step_s
    less = [format_percent(1 - step_s / own_s) for step_s in steps_s]
    one = len(further) == 1
    return [
        Advice(
            f"{and_of(further)} {'updates' if one else 'update'} parameters in the next forward pass, and "
            f"{'is' if one else 'are'} predicted to take {and_of([format_seconds(s) for s in steps_s])} a step, "
            f"{and_of(less)} less than {choice} (simulated)."
        )
    ]


def recommendation(foreseen: Foreseen) -> str:
    """One sentence: which mode to use, and what it is predicted to gain."""
    choice = fastest(foreseen)
    if choice is None:
        return "Only the control was planned, so there is nothing to recommend."
    plans, step_s = foreseen.plans, foreseen.plans[choice].predicted_step_s
    bound_s = bound_of(foreseen, choice)
    bound = "" if bound_s is None else f"{format_percent(above(step_s, bound_s))} above the bound"
    if "ddp" not in plans:
        parts = [f"{format_seconds(step_s)} a step", *([bound] if bound else [])]
        return f"{choice} is predicted fastest: {', '.join(parts)} (simulated)."
    ddp_s = plans["ddp"].predicted_step_s
    if choice == "ddp":
        return (
            f"Keep ddp as it comes: no other mode is predicted to take less than its {format_seconds(ddp_s)} a step by "
            "an amount that matters (simulated)."
        )
    gain = format_percent(1 - step_s / ddp_s) if ddp_s > 0 else "–"
    if not matters(foreseen, choice):
        return f"Keep ddp as it comes: {choice}, the fastest, is predicted to take only {gain} less a step (simulated)."
    return (
        f"Use {choice}: predicted {format_seconds(step_s)} a step, {gain} less than ddp's {format_seconds(ddp_s)}"
        f"{f' and {bound}' if bound else ''} (simulated)."
    )


def fastest(foreseen: Foreseen) -> str | None:
    """The mode with the least predicted step; of those as good, the one that changes least in a training script.

    None when only controls were planned. Modes whose next forward pass starts before all gradients have arrived are
    none of them unless that is allowed, or nothing else was planned.
    """
    plans = {mode: plan for mode, plan in foreseen.plans.items() if not is_control(mode)}
    if foreseen.overlap == "backward":
        plans = {mode: plan for mode, plan in plans.items() if mode not in NEXT_FORWARD} or plans
    limit_s = min((plan.predicted_step_s for plan in plans.values()), default=0.0) * (1 + AS_GOOD)
    good = [mode for mode, plan in plans.items() if plan.predicted_step_s <= limit_s]
    known = len(LEAST_CHANGE)
    return min(good, key=lambda mode: (LEAST_CHANGE.get(mode, known), plans[mode].predicted_step_s), default=None)


def matters(foreseen: Foreseen, choice: str) -> bool:
    """Whether a mode is predicted to take so much less than DDP that one would change a script for it."""
    ddp = foreseen.plans.get("ddp")
    return ddp is None or foreseen.plans[choice].predicted_step_s <= ddp.predicted_step_s * (1 - EQUIVALENT)


def above(step_s: float, bound_s: float) -> float:
    """How far a step is above the bound; rounding may fall short of it."""
    return max(0.0, step_s / bound_s - 1) if bound_s > 0 else 0.0


def bound_of(foreseen: Foreseen, mode: str) -> float | None:
    """What a step of this mode takes at least [s], by what it may overlap; None where no link was measured."""
    if foreseen.bounds is None:
        return None
    carried_ahead = (foreseen.plans[mode].carrier or mode) in NEXT_FORWARD
    return foreseen.bounds.overlap_bound_s if carried_ahead else foreseen.bounds.backward_overlap_bound_s


def compare_command(spec: RunSpec, modes: Sequence[str]) -> str:
    """The command that times these modes under the conditions of a run."""
    return typed(spec, "compare", {"--modes": ",".join(modes)})


def typed(spec: RunSpec, command: str, asked: Mapping[str, str]) -> str:
    """A command on the workload of a run and under its conditions, but for the options that are asked for."""
    workload = spec.workloads[0]
    options = {
        **asked,
        "--batch-size": workload.batch_size,
        "--image-size": workload.image_size,
        "--seq-len": workload.seq_len,
        "--dtype": workload.dtype if workload.dtype != "fp32" else None,
        "--optimizer": workload.optimizer if workload.optimizer != "sgd" else None,
        "--seed": workload.seed or None,
        "--fabric": str(spec.fabric) if spec.fabric.name != "cluster" else None,
        "--device": f"cuda:{spec.gpu}" if spec.gpu is not None else None,
        "--copies": spec.copies if spec.copies != "views" else None,
        "--compress": spec.compress,
        "--backend": spec.collectives if spec.collectives != "torch" else None,
    }
    words = [word for flag, value in {**options, **asked}.items() if value is not None for word in (flag, str(value))]
    setting = f"{VARIABLE}=off " if spec.host_tuning is False else ""
    return setting + shlex.join(["xbench", command, workload.name, *words])


def _emit(record: Comparison, best: ModeResult, place: str) -> str | None:
    """The command that prints the winner's lines; None where `xbench plan` cannot plan this record."""
    used = next((mode for mode in record.spec.modes if mode.text == best.mode), None)
    if used is None or used.carrier == UNPLANNED or record.spec.compress is not None or record.cost_model is None:
        return None
    what = "ddp" if used.carrier == TUNED else "python"
    forward = " --overlap forward" if record.spec.overlap == "forward" else ""
    return f"xbench plan {shlex.quote(place)} --emit {what} --mode {used.carrier}{forward}{_job(record)}"


def _job(record: Comparison) -> str:
    """Plans are of one job: the first, where there are different ones."""
    return " --job 1" if len(set(record.spec.workloads)) > 1 else ""
