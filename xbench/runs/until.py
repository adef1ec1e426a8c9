"""Launch policy of `xbench compare --until 2%`: a few launches, then as many as the precision needs.

The first launches show how far launches of this workload differ on this machine. From that follows how many launches of
as many rounds give every ratio an interval of ± the precision (`stats.compare.launches_needed`). Controls do not count,
and modes that are shown to be slower than their reference count as decided. The number is computed once. Asking after
every launch whether the interval is narrow enough would stop at launches that agree by chance, and the interval would
hold less often.

A launch is started only if the time of the one before fits the rest of the budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

from xbench.modes import mode_info
from xbench.rank.program import JobPlan, phases
from xbench.records import Sample
from xbench.runs.build_records import ratios_of
from xbench.runs.event_collector import Collector
from xbench.runs.launch_policy import LaunchSpec
from xbench.runs.progress import clock as duration
from xbench.spec import RunSpec
from xbench.stats.blocks import mode_values
from xbench.stats.compare import MAX_LAUNCHES, launches_needed
from xbench.text import counted
from xbench.units import format_brief_percent

MIN_PILOT = 4
"""Launches before the number is computed. Fewer show the spread of launches so badly that it would mislead."""


class UntilPrecise:
    """A `LaunchPolicy`. `precision` is a share (0.02 is 2 %); `budget_s` [s] counts from construction."""

    launches = None

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
        says: list[str] = []
        if number >= pilot and self._total is None:
            samples = found.samples()
            self._total = self._needed(samples, pilot)
            says += [self._told(samples, number)] if samples else []
        if self._total is not None and number >= self._total:
            return None
        now_s = self._clock()
        took_s = now_s - self._launched_s if number else 0.0
        if now_s - self._begun_s + took_s > self.budget_s and number:
            wanted = self._total if self._total is not None else pilot
            self.warnings.append(
                f"--until {format_brief_percent(self.precision)}: the budget of {duration(self.budget_s)} ended after "
                f"{counted(number, 'launch', 'launches')} of {wanted}"
            )
            return None
        self._launched_s = now_s
        self._ran = number + 1
        return LaunchSpec(self.run, phases(self.run, number, seed=self.run.workloads[0].seed), tuple(says))

    def ran(self, run: RunSpec) -> RunSpec:
        """Return the spec with the number of launches that were started."""
        if not self._ran:
            return run
        return run.model_copy(update={"effort": run.effort.model_copy(update={"launches": self._ran})})

    def _needed(self, samples: Sequence[Sample], pilot: int) -> int:
        """Return the number of launches that every open ratio needs. A mode without blocks has no ratio."""
        ratios = ratios_of(self.run, {mode.text: mode_values(self.run, mode, samples) for mode in self.run.modes})
        rivals = [ratios[m.text] for m in self.run.modes if mode_info(m.name).advisable and m.text in ratios]
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
