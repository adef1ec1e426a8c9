"""Launch policy of `xbench tune`: profile once, then launches of the candidates that may still win.

The first launch times nothing: it profiles, plans and checks parity. A candidate that is predicted far behind the best
plan, or forms the same buckets as another, is set aside with the reason. Then DDP and the others are timed together,
launch by launch. After each launch `stats.tuning` decides whether the answer is settled and which candidates are out.
All launches are one comparison: blocks are paired within launch and round, so modes may drop out.

A launch is started only if its predicted length fits the rest of the budget, with fewer and shorter blocks if that
helps. The first timed launch always runs, as small as possible, because the run needs at least one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from xbench.errors import SpecError
from xbench.modes import TUNED_DDP, mode_info
from xbench.planning.plans import bucket_caps_mib
from xbench.rank.program import MIN_STEPS, JobPlan, Phase, balanced_blocks, steps_in_block
from xbench.records import Comparison, Plan, Sample
from xbench.records.comparison import Tuned
from xbench.runs.event_collector import Collector
from xbench.runs.launch_policy import LaunchPolicy, LaunchSpec
from xbench.runs.progress import START_S
from xbench.spec import ModeSpec, RunSpec
from xbench.stats.blocks import mode_values
from xbench.stats.compare import MIN_PAIRS, BlockValue
from xbench.stats.tuning import Choice, choose
from xbench.units import format_percent

REFERENCE = "ddp"
CONTROL = "compute"
FAR = 1.25
"""Ratio of a plan's predicted step to the best plan's above which it is not timed: twice the prediction error."""

LAUNCH_S = 60.0
"""Target time of a timed launch's rounds [s], so that starting the ranks is the smaller part."""

MAX_ROUNDS = 12
MIN_BLOCK_STEPS = 2
ATTACH_S = 0.3
"""Approximate time of a block besides its steps [s]: attaching, synchronising, detaching."""


@dataclass(frozen=True)
class Timed:
    """Modes, rounds and steps of one timed launch."""

    modes: tuple[str, ...]
    rounds: int
    steps: int


class Tune(LaunchPolicy):
    """Policy of `xbench tune`. `budget_s` [s] counts from construction; `margin` is the least gain worth a change."""

    def __init__(self, budget_s: float, margin: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.budget_s = budget_s
        self.margin = margin
        self.warnings: list[str] = []
        self._clock = clock
        self._begun_s = clock()
        self._launched_s = self._begun_s
        self._start_s = START_S
        self._slower = 1.0
        self._candidates: list[str] = []
        self._timed: list[Timed] = []
        self._failed: set[str] = set()

    def check(self, run: RunSpec) -> tuple[str, ...]:
        """Store the run, and return messages. Raises SpecError for a world of one rank."""
        self.run = run
        if run.fabric.world_size < 2:
            raise SpecError(
                f"there is nothing to tune: {run.fabric} has 1 rank, so no gradient travels",
                hint="try --fabric local:ranks=2",
            )
        if run.fabric.name == "cluster":
            return (f"the ranks are given, so there is one launch of {run.effort.rounds} rounds, however long",)
        return ()

    def next_launch(self, number: int, found: Collector, plans: Sequence[JobPlan]) -> LaunchSpec | None:
        """Return the launch that profiles, then timed launches until the answer is settled or time is up."""
        if number == 0:
            gated = [mode.text for mode in self.run.modes if mode.name != CONTROL]
            gates = (Phase(kind="parity", mode=mode) for mode in gated)
            return LaunchSpec(self.run, (Phase(kind="profile"), *gates), ("profiling and planning first",))
        samples = found.samples()
        refused = {mode for mode, gates in found.parity.items() if not all(gate.ok for gate in gates)}
        self._failed = set(found.failed) | refused
        choice = choose(blocks_of(self.run, samples, self._failed), REFERENCE, self.margin)
        if number == 1:
            self._candidates = self._selected(found.jobs[0].plans)
            staying = self._candidates
        else:
            self._learn(found, number - 1, self._steps_s(samples, plans))
            fine = [mode for mode in self._candidates if mode not in self._failed]
            # If all are out after one launch, that is no answer yet. The nearest is timed again.
            staying = [mode for mode in fine if mode not in choice.out] or [m for m in fine if m == choice.best]
        if choice.settled or not staying or REFERENCE in self._failed:
            return None
        step_s = self._steps_s(samples, plans)
        timed = self._fitting(staying, step_s, first=number == 1)
        if timed is None:
            return None
        self._timed.append(timed)
        self._launched_s = self._clock()
        return LaunchSpec(
            self.run.model_copy(update={"effort": self.run.effort.model_copy(update={"steps": timed.steps})}),
            balanced_blocks(timed.modes, timed.rounds, self.run.workloads[0].seed + number),
            (*([standing(choice)] if choice.ratios else []), self._told(timed)),
        )

    def ran(self, run: RunSpec) -> RunSpec:
        """Return the spec with the modes that were timed or failed, and the number of launches and rounds."""
        if not self._timed:
            return run
        names = self._failed.union(*(timed.modes for timed in self._timed))
        effort = run.effort.model_copy(
            update={"launches": len(self._timed), "rounds": max(timed.rounds for timed in self._timed)}
        )
        modes = tuple(mode for mode in run.modes if mode.text in names)
        return run.model_copy(update={"modes": modes, "effort": effort})

    def _selected(self, plans: Mapping[str, Plan]) -> list[str]:
        """Return the candidates to time, best predicted first. Reasons for leaving out others are added to the
        warnings."""
        candidates = [mode for mode in self.run.modes if mode.name not in (REFERENCE, CONTROL)]
        candidates = [mode for mode in candidates if mode.text not in self._failed and mode.carrier in plans]
        best_s = min((plans[mode.carrier].predicted_step_s for mode in candidates), default=0.0)
        taken = [mode for mode in self.run.modes if mode.name == REFERENCE]
        chosen: list[ModeSpec] = []
        twins: dict[str, ModeSpec] = {}  # by the message that reports the omission
        for mode in candidates:
            plan = plans[mode.carrier]
            twin = next((other for other in taken if _same(mode, other, plans)), None)
            if twin is not None:
                told = f"{mode.text} was not timed: it forms the buckets of {twin.text}"
                if twin.name == REFERENCE and plans[mode.carrier].carrier == REFERENCE:
                    own = f"in its trial no plan was faster, so {twin.text}'s times are its own"
                    told = f"{mode.text} is {twin.text} itself here: {own}"
                twins[told] = mode
                self.warnings.append(told)
            elif plan.predicted_step_s > FAR * best_s:
                behind = format_percent(plan.predicted_step_s / best_s - 1, 0)
                self.warnings.append(
                    f"{mode.text} was not timed: its predicted step is {behind} above the best plan's (simulated)"
                )
            else:
                chosen.append(mode)
                taken.append(mode)
        if not chosen and twins:  # time one anyway, because the run needs a candidate
            told, mode = next(iter(twins.items()))
            self.warnings.remove(told)
            chosen.append(mode)
        return [mode.text for mode in sorted(chosen, key=lambda mode: plans[mode.carrier].predicted_step_s)]

    def _steps_s(self, samples: Sequence[Sample], plans: Sequence[JobPlan]) -> dict[str, float]:
        """Return the expected step of each mode [s]: measured if available, else predicted."""
        expected = {}
        for mode in self.run.modes:
            seen = [sample.step_s for sample in samples if sample.mode == mode.text]
            predicted_s = plans[0].step_s.get(mode.carrier, plans[0].compute_s) if plans else 0.0
            expected[mode.text] = median(seen) if seen else predicted_s
        return expected

    def _fitting(self, candidates: Sequence[str], step_s: Mapping[str, float], *, first: bool) -> Timed | None:
        """Return the largest launch that fits the time left; None if none fits.

        The first launch may use only half of the time left if possible, so that a second can follow.
        """
        left_s = self.budget_s - (self._clock() - self._begun_s)
        there = [mode.text for mode in self.run.modes]
        control = (CONTROL,) if first and CONTROL in there else ()
        modes = (*control, REFERENCE, *candidates)
        steps = steps_in_block(self.run, max(step_s[mode] for mode in modes))
        short = min(steps, MIN_STEPS)
        round_s = self._blocks_s(Timed(modes, 1, steps), step_s)
        rounds = min(MAX_ROUNDS, max(MIN_PAIRS, int(LAUNCH_S / round_s))) if round_s > 0 else MAX_ROUNDS
        wishes = [Timed(modes, rounds, steps), Timed(modes, MIN_PAIRS, steps), Timed(modes, MIN_PAIRS, short)]
        fits = [(wish, left_s / 2) for wish in wishes] if first else []
        fits += [(wish, left_s) for wish in [*wishes, Timed(modes, MIN_PAIRS, MIN_BLOCK_STEPS)]]
        least = Timed((REFERENCE, candidates[0]), MIN_PAIRS, MIN_BLOCK_STEPS)
        if first:
            fewer = [
                Timed((REFERENCE, *candidates[:count]), MIN_PAIRS, MIN_BLOCK_STEPS)
                for count in range(len(candidates), 1, -1)
            ]
            fits += [(wish, left_s) for wish in [*fewer, least]]
        for wish, limit_s in fits:
            if self._start_s + self._blocks_s(wish, step_s) <= limit_s:
                return self._kept(wish, candidates)
        return self._kept(least, candidates) if first else None

    def _kept(self, timed: Timed, candidates: Sequence[str]) -> Timed:
        """Return `timed`, after adding a warning for each candidate without time."""
        self.warnings += [
            f"{mode} was not timed: the minutes did not suffice" for mode in candidates if mode not in timed.modes
        ]
        self._candidates = [mode for mode in self._candidates if mode in timed.modes or mode not in candidates]
        return timed

    def _blocks_s(self, timed: Timed, step_s: Mapping[str, float]) -> float:
        steps = self.run.effort.warmup_steps + timed.steps
        return self._slower * timed.rounds * sum(ATTACH_S + steps * step_s[mode] for mode in timed.modes)

    def _learn(self, found: Collector, launch: int, step_s: Mapping[str, float]) -> None:
        """Learn from the last launch: the time to start ranks, and the ratio of block times to their predictions."""
        expected_s = self._blocks_s(self._timed[-1], step_s) if self._timed else 0.0
        stamps = [
            stamp
            for (number, _, _), ranks in found.raw_blocks.items()
            for block in ranks.values()
            for stamp in block.stamps
            if number == launch
        ]
        if not stamps or expected_s <= 0:
            return
        took_s = self._clock() - self._launched_s
        blocks_s = min(took_s, max(stamps) - min(stamps))
        self._start_s = took_s - blocks_s
        self._slower *= max(0.2, blocks_s / expected_s)

    def _told(self, timed: Timed) -> str:
        spent = format_minutes(self._clock() - self._begun_s)
        return (
            f"{spent} of {format_minutes(self.budget_s)} spent: timing {', '.join(timed.modes)} "
            f"in {timed.rounds} rounds of {timed.steps} steps"
        )


def standing(choice: Choice) -> str:
    """Return 'so far, of ddp's time: auto 0.903 [0.880, 0.927], optimal …'."""
    parts = [
        f"{name} {ratio.value:.3f} [{ratio.ci95[0]:.3f}, {ratio.ci95[1]:.3f}]" for name, ratio in choice.ratios.items()
    ]
    return f"so far, of {REFERENCE}'s time: {', '.join(parts)}"


def format_minutes(seconds: float) -> str:
    """Format a duration: '45 s' below two minutes, else '3.5 min'."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min".replace(".0 ", " ")


def blocks_of(run: RunSpec, samples: Sequence[Sample], failed: Collection[str] = ()) -> dict[str, list[BlockValue]]:
    """Return seconds per sample of the blocks of the reference and of each candidate that may win."""
    return {
        mode.text: mode_values(run, mode, samples)
        for mode in run.modes
        if mode.name != CONTROL and mode.text not in failed
    }


def choice_of(record: Comparison, margin: float) -> Choice:
    """Return the choice that a record of a tuned run supports."""
    failed = [name for name, mode in record.modes.items() if mode.status != "ok"]
    return choose(blocks_of(record.spec, record.samples, failed), REFERENCE, margin)


def tuned_record(record: Comparison, choice: Choice, margin: float, plans: Sequence[JobPlan], source: str) -> Tuned:
    """Build the small file to keep: the schedule, its buckets, and its evidence. `source` is the record's path."""
    mode = choice.winner or REFERENCE
    ratio = choice.ratios[choice.winner] if choice.winner is not None else None
    job = record.jobs[0]
    plan = job.plans.get(mode)
    buckets, caps_mib, bucket_bytes, parts = None, None, None, None
    if mode != REFERENCE and plan is not None:
        buckets = plans[0].buckets.get(mode) if plans else plan.buckets
        parts = plans[0].parts.get(mode) if plans else plan.parts
        bucket_bytes = plan.bucket_bytes
        dtypes = {tensor.name: tensor.dtype for layer in job.layers for tensor in layer.tensors}
        ahead = mode_info(plan.carrier or mode).puts_off  # its buckets are made for a step that DDP does not take
        if mode_info(mode).reducer == "ddp" or (len(set(dtypes.values())) == 1 and not ahead):
            caps_mib = bucket_caps_mib(plan, dtypes)
    result = record.modes[mode]
    return Tuned(
        created=record.created,
        command=record.command,
        xbench=record.environment.xbench,
        torch=record.environment.torch,
        device=record.environment.device,
        label=result.label,
        record=source,
        workload=job.workload,
        fabric=record.fabric,
        schedule=mode,
        reference=REFERENCE,
        margin=margin,
        ratio=ratio,
        tried=choice.ratios,
        buckets=buckets,
        parts=parts,
        carrier=plan.carrier if plan is not None and buckets is not None else None,
        bucket_bytes=bucket_bytes,
        bucket_cap_mb_list=caps_mib,
        host_tuning=record.spec.tunes_ranks,
        unused_parameters=bool(plans and plans[0].unused_parameters),
    )


def tuned_ddp_record(record: Comparison, choice: Choice, margin: float, plans: Sequence[JobPlan]) -> Tuned | None:
    """Return what would be kept if DDP with a plan's buckets had won; None unless it is as good as the winner.

    It is as good if it is faster than DDP, and the run cannot tell it from a winner that needs more than an argument.
    """
    if choice.winner is None or mode_info(choice.winner).script_change <= mode_info(TUNED_DDP).script_change:
        return None
    if TUNED_DDP not in choice.close or choice.ratios[TUNED_DDP].ci95[1] >= 1:
        return None
    found = tuned_record(record, replace(choice, best=TUNED_DDP), margin, plans, "")
    return found if found.bucket_cap_mb_list else None


def _same(mode: ModeSpec, other: ModeSpec, plans: Mapping[str, Plan]) -> bool:
    """True if two modes send the same buckets with the same reducer."""
    if other.carrier not in plans:
        return False
    one, two = plans[mode.carrier], plans[other.carrier]
    alike = _means(mode, one) == _means(other, two) and one.parts == two.parts
    return alike and one.buckets == two.buckets


def _means(mode: ModeSpec, plan: Plan) -> str:
    """Return DDP's reducer, our engine's, or the name of a schedule with its own."""
    carrier = mode_info(plan.carrier or mode.carrier)
    return carrier.name if carrier.puts_off or carrier.reducer == "own" else carrier.reducer
