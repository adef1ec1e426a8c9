"""Policy that decides before each launch whether the run continues, and with which modes.

A rank that runs out of memory in one mode makes the mode fail, and the others continue (`OomTracker`). Ranks cannot
agree on this within a step: the rank without memory has launched some of the step's collectives and will not launch the
rest, while the others wait in them. So the launch is ended as for any error, and the remaining phases run in newly
started ranks, without that mode. A mode that runs out of memory while its steps are recorded has not failed.

An interrupted round of blocks is timed again as a whole: its modes are compared with each other, which is fair only
among blocks of the same processes. Earlier measurements are kept. The new ranks belong to the same launch, so its
spread includes the effect of another start.

A run ends if no mode is the cause, as when memory runs out during the profile, or in the steps of DDP that every mode
is checked against, if mode `ddp` is not in the run or has already failed. A run inside torchrun ends too, because we do
not start its ranks.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from xbench.modes import mode_info
from xbench.rank.events import Event, PhaseBegan, RankFailed
from xbench.rank.program import JobPlan, Phase, phases
from xbench.records import Sample
from xbench.runs.build_records import ratios_of
from xbench.runs.event_collector import Collector
from xbench.runs.progress import clock as duration
from xbench.spec import RunSpec
from xbench.stats.blocks import mode_values
from xbench.stats.compare import MAX_LAUNCHES, launches_needed
from xbench.text import counted
from xbench.units import format_brief_percent

MIN_PILOT = 4
"""Launches before `UntilPrecise` computes their number. Fewer show the spread of launches so badly that it would
mislead."""


@dataclass(frozen=True)
class LaunchSpec:
    """One launch: the spec that its ranks read, and their phases."""

    run: RunSpec
    phases: tuple[Phase, ...]
    says: tuple[str, ...] = ()
    """Messages for the user before it starts."""


class LaunchPolicy(ABC):
    """Policy that decides on each launch."""

    launches: int | None = None
    """Number of launches; None if it is not known beforehand."""

    warnings: Sequence[str] = ()
    """Sentences for the record."""

    def check(self, run: RunSpec) -> tuple[str, ...]:
        """Return messages for the user about the resolved run. Raises SpecError if the policy cannot run it."""
        return ()

    @abstractmethod
    def next_launch(self, number: int, found: Collector, plans: Sequence[JobPlan]) -> LaunchSpec | None:
        """Return launch `number`, counted from 0, or None if the run is over. `plans` are the first launch's."""

    def ran(self, run: RunSpec) -> RunSpec:
        """Return the spec of what really ran, for the record."""
        return run


class FixedLaunches(LaunchPolicy):
    """Policy with the effort's number of launches; one for a profile."""

    launches: int

    def __init__(self, run: RunSpec) -> None:
        self.run = run
        self.launches = run.effort.launches + run.profiles_apart

    def next_launch(self, number: int, found: Collector, plans: Sequence[JobPlan]) -> LaunchSpec | None:
        """Return the launch, or None after the last."""
        if number >= (self.launches if self.run.kind == "comparison" else 1):
            return None
        return LaunchSpec(self.run, phases(self.run, number, seed=self.run.workloads[0].seed))


class UntilPrecise(LaunchPolicy):
    """Policy of `xbench compare --until 2%`: a few launches, then as many as the precision needs.

    The first launches show how far launches of this workload differ on this machine. From that follows how many
    launches of as many rounds give every ratio an interval of ± the precision (`stats.compare.launches_needed`).
    Controls do not count, and modes that are shown to be slower than their reference count as decided. The number is
    computed once. Asking after every launch whether the interval is narrow enough would stop at launches that agree by
    chance, and the interval would hold less often.

    A launch is started only if the time of the one before fits the rest of the budget. `precision` is a share (0.02 is
    2 %); `budget_s` [s] counts from construction.
    """

    def __init__(self, precision: float, budget_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.precision = precision
        self.budget_s = budget_s
        self.warnings: list[str] = []
        self._clock = clock
        self._begun_s = self._launched_s = clock()
        self._ran = 0
        self._total: int | None = None

    def check(self, run: RunSpec) -> tuple[str, ...]:
        """Store the run, and return messages."""
        self.run = run
        if run.fabric.name == "cluster":
            return ("the ranks are given, so there is one launch, and --until has no effect",)
        return ()

    def next_launch(self, number: int, found: Collector, plans: Sequence[JobPlan]) -> LaunchSpec | None:
        """Return the next launch; None after the last, or if another one does not fit the budget."""
        pilot = max(MIN_PILOT, self.run.effort.launches)
        timed = max(0, number - self.run.profiles_apart)
        says: list[str] = []
        if timed >= pilot and self._total is None:
            samples = found.samples()
            self._total = self._needed(samples, pilot)
            says += [self._told(samples, timed)] if samples else []
        if self._total is not None and timed >= self._total:
            return None
        now_s = self._clock()
        took_s = now_s - self._launched_s if timed else 0.0
        if now_s - self._begun_s + took_s > self.budget_s and timed:
            wanted = self._total if self._total is not None else pilot
            self.warnings.append(
                f"--until {format_brief_percent(self.precision)}: the budget of {duration(self.budget_s)} ended after "
                f"{counted(timed, 'launch', 'launches')} of {wanted}"
            )
            return None
        self._launched_s = now_s
        self._ran = timed + 1
        return LaunchSpec(self.run, phases(self.run, number, seed=self.run.workloads[0].seed), tuple(says))

    def ran(self, run: RunSpec) -> RunSpec:
        """Return the spec with the number of launches that were started."""
        if not self._ran:
            return run
        return run.model_copy(update={"effort": run.effort.model_copy(update={"launches": self._ran})})

    def _needed(self, samples: Sequence[Sample], pilot: int) -> int:
        """Return the number of launches that every open ratio needs. A mode without blocks has no ratio."""
        ratios = ratios_of(self.run, {mode.text: mode_values(self.run, mode, samples) for mode in self.run.modes})
        rivals = [ratios[m.text] for m in self.run.modes if mode_info(m.name).equivalent_to_ddp and m.text in ratios]
        open_ones = [ratio for ratio in rivals if ratio.verdict not in ("reference", "slower")]
        needed = [launches_needed(ratio, self.precision) or MAX_LAUNCHES for ratio in open_ones]
        return max([pilot, *needed])

    def _told(self, samples: Sequence[Sample], number: int) -> str:
        """Say how many launches, rounds and steps the precision needs, and how long the rest of them takes."""
        assert self._total is not None
        steps = round(median(len(sample.steps_s) for sample in samples))
        left_s = (self._total - number) * (self._clock() - self._launched_s)
        more = f"; about {duration(left_s)} more" if left_s > 0 else ""
        return (
            f"ratios to ±{format_brief_percent(self.precision)} need about {self._total} launches of "
            f"{counted(self.run.effort.rounds, 'round')} of {counted(steps, 'step')} here{more}"
        )


class OomTracker:
    """Tracker of the events of all ranks: modes that ran out of memory, and the phases in progress."""

    def __init__(self, modes: Sequence[str]) -> None:
        self._modes = tuple(modes)
        self._failed: set[str] = set()
        self._short: str | None = None
        self._phase: dict[tuple[int, int], int] = {}
        self._at = 0

    def begin(self) -> None:
        """Reset before ranks are started."""
        self._short, self._at = None, 0
        self._phase.clear()

    def take(self, job: int, rank: int, event: Event) -> None:
        """Take one journal event. The first rank that reports lack of memory counts."""
        if isinstance(event, PhaseBegan):
            self._phase[job, rank] = event.number
        elif isinstance(event, RankFailed) and event.short_in and self._short is None:
            self._short, self._at = event.short_in, self._phase.get((job, rank), 0)

    def failed(self) -> str | None:
        """Return the mode that ended the launch by running out of memory, once each; None if none did."""
        mode = self._short
        if mode is None or mode not in self._modes or mode in self._failed:
            return None
        self._failed.add(mode)
        return mode

    def while_recording(self, phases: Sequence[Phase]) -> str | None:
        """Return the mode whose recorded steps, which no block follows, ran out of memory; None if none did."""
        recording = self._short is not None and phases[self._at].kind == "timeline"
        return self._short if recording else None

    def without(self, phases: Sequence[Phase]) -> tuple[Phase, ...]:
        """Return the phases without those of modes that ran out of memory."""
        return tuple(phase for phase in phases if phase.mode not in self._failed)

    def rest(self, phases: Sequence[Phase]) -> tuple[Phase, ...]:
        """Return the remaining phases of the launch that has ended, from the interrupted round on."""
        if not phases:
            return ()
        at = phases[self._at]
        rounds = (number for number, phase in enumerate(phases) if phase.kind == "block" and phase.round == at.round)
        start = next(rounds, self._at) if at.kind == "block" else self._at
        return self.without(phases[start:])
