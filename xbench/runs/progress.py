"""Progress on stderr while ranks run: the current phase, its speed, and the time left.

On a terminal it is one line that is redrawn; elsewhere, one plain line for each phase. Nothing here is measured or
saved.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from textwrap import TextWrapper

from rich.console import Console
from rich.status import Status

from xbench.modes import mode_info
from xbench.rank import events
from xbench.rank.program import Phase
from xbench.spec import ModeSpec, RunSpec
from xbench.stats.compare import MARGIN
from xbench.text import UNBROKEN, unbroken
from xbench.units import format_percent, format_seconds

_COUNT = re.compile(r"\d+ of \d+")

START_S = 12.0
"""Approximate time to start the ranks [s]: interpreters, torch, the workload."""


class Progress:
    """Progress of the phases, launch by launch. `console` writes to stderr.

    With `launches` None their number is unknown, and the time left is that of the current launch. If `run` compares
    modes, those predicted slower than their reference are named before they are timed.
    """

    def __init__(self, console: Console, *, launches: int | None, run: RunSpec | None = None) -> None:
        self._console = console
        self._run = run
        self._launches = launches
        self._launch = 0
        self._phases: tuple[Phase, ...] = ()
        self._durations_s: dict[str, list[float]] = {}
        self._steps_s: dict[str, list[float]] = {}
        self._current: tuple[int, float] | None = None
        self._part: str | None = None
        self._status: Status | None = None

    def say(self, text: str) -> None:
        """Print a line that stays. On a terminal it is folded between words, but no path and no line to paste is."""
        if self._console.is_terminal:
            fold = TextWrapper(self._console.width, break_long_words=False, break_on_hyphens=False).fill
            text = "\n".join(fold(unbroken(line)) for line in text.split("\n")).replace(UNBROKEN, " ")
        self._console.print(text, highlight=False, soft_wrap=True)

    def begin_launch(self, launch: int, phases: tuple[Phase, ...]) -> None:
        """Show that ranks are about to be started."""
        self._launch, self._phases, self._current = launch, phases, None
        self._show(f"{self._place()}: starting the ranks")

    def take(self, job: int, rank: int, event: events.Event) -> None:
        """Take one event of a rank's journal. Those of rank 0 of the first job are shown."""
        if job or rank or event.of_job:
            return
        match event:
            case events.ProfilePartBegan():
                self._part = event.name
                self._show_part(event.t)
            case events.PhaseBegan():
                self._phase(event)
            case events.SchedulesPlanned() if self._run is not None:
                steps_s = {mode: plan.predicted_step_s for mode, plan in event.plans.items()}
                for sentence in predicted_slower(self._run, steps_s):
                    self.say(sentence)
            case events.BlockTimed():
                timed = event.stamps[event.warmup :]
                if len(timed) > 1:
                    self._steps_s.setdefault(event.mode, []).append((timed[-1] - timed[0]) / (len(timed) - 1))

    def note(self, rank: int, at_s: float, text: str) -> None:
        """Show a note of a rank of the first job. `at_s` is the machine's monotonic time [s]."""
        counted = _COUNT.search(text)
        if rank == 0 and counted is not None and self._part is not None and self._console.is_terminal:
            self._show_part(at_s, f" {counted[0]}")

    def _show_part(self, at_s: float, count: str = "") -> None:
        """Show the current part of the profile, its progress, and the time of the profile so far."""
        since_s = self._current[1] if self._current is not None else at_s
        self._show(f"{self._place()}: profile, {self._part}{count}, {clock(at_s - since_s)} so far")

    def _phase(self, event: events.PhaseBegan) -> None:
        self._part = None
        if self._current is not None:
            before, since_s = self._current
            self._durations_s.setdefault(self._kind(before), []).append(event.t - since_s)
        self._current = (event.number, event.t)
        phase = self._phases[event.number]
        parts = [self._place(), f"parity check of {phase.mode}" if phase.kind == "parity" else event.name]
        if phase.kind == "block" and self._steps_s.get(phase.mode):
            whose = " of one of the jobs" if mode_info(phase.mode.partition("@")[0].partition(":")[0]).together else ""
            step = format_seconds(statistics.median(self._steps_s[phase.mode]))
            parts.append(f"median step{whose} so far {step}")
        left_s = self._left_s(event.number)
        if left_s is not None:
            parts.append(f"about {clock(left_s)} left")
        self._show(": ".join(parts[:2]) + "".join(f", {part}" for part in parts[2:]))

    def _place(self) -> str:
        return f"launch {self._launch + 1}" + (f" of {self._launches}" if self._launches is not None else "")

    def _kind(self, number: int) -> str:
        phase = self._phases[number]
        return phase.kind if phase.kind != "block" else f"block {phase.mode}"

    def _left_s(self, number: int) -> float | None:
        """Return the time of the remaining phases [s], from earlier ones of their kind; None before any timed block."""
        blocks = [value for kind, values in self._durations_s.items() if kind.startswith("block") for value in values]
        if not blocks:
            return None
        usual = statistics.median(blocks)
        block_phases = [f"block {p.mode}" for p in self._phases if p.kind == "block"]
        rest = [self._kind(n) for n in range(number, len(self._phases))]
        more = self._launches - self._launch - 1 if self._launches is not None else 0
        rest += block_phases * more
        start_s = START_S * more
        return start_s + sum(statistics.median(self._durations_s.get(kind, [usual])) for kind in rest)

    def _show(self, text: str) -> None:
        if not self._console.is_terminal:
            self._console.print(text, highlight=False, soft_wrap=True)
            return
        if self._status is None:
            self._status = self._console.status(text)
            self._status.start()
        else:
            self._status.update(text)

    def redraw(self, text: str) -> None:
        """Redraw the line once the profile is over; do nothing without a terminal."""
        self._part = None
        if self._console.is_terminal:
            self._show(text)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        """Remove the line that is redrawn."""
        if self._status is not None:
            self._status.stop()
            self._status = None


class Trainings:
    """Trainings of `xbench converge`, of the first job: the last epoch, those that are done, and the time left.

    Two jobs in turns train one seed each at the same time.
    """

    def __init__(self, progress: Progress, modes: Sequence[ModeSpec], seeds: int, epochs: int) -> None:
        self._progress = progress
        self._of = {mode.text: (seeds + 1) // 2 if mode.paired else seeds for mode in modes}
        self._epochs = epochs
        self._began_s: float | None = None
        self._done = 0
        self._taken_s = 0.0

    def take(self, job: int, rank: int, event: events.Event) -> None:
        """Take one event of a rank's journal."""
        if isinstance(event, events.ModeFailed):
            self._of.pop(event.mode, None)
        if (job, rank) != (0, 0):
            return
        match event:
            case events.ProfilePartBegan() | events.PhaseBegan(number=0):
                self._progress.take(job, rank, event)
            case events.PhaseBegan() if self._began_s is None:
                self._began_s = event.t
            case events.EpochTrained():
                self._done += 1
                self._taken_s = event.t - (self._began_s or 0.0)
                place = f"{event.mode}, seed {event.seed}, epoch {event.epoch} of {self._epochs} done"
                self._progress.redraw(f"{place}; {self.standing()}")

    def standing(self) -> str:
        """Return '2 of 9 trainings done, about 6 min left'."""
        total = sum(self._of.values())
        left = total * self._epochs - self._done
        told = f"{self._done // self._epochs} of {total} trainings done"
        return f"{told}, about {clock(self._taken_s / self._done * left)} left" if self._done and left > 0 else told


def predicted_slower(run: RunSpec, steps_s: Mapping[str, float]) -> list[str]:
    """Return a message for each reference that single-job modes are predicted to exceed, by their steps [s].

    Differences within the margin of equivalence do not count.
    """
    found: dict[str, list[str]] = {}
    carriers = {mode.text: mode.carrier for mode in run.modes}
    for mode in run.modes:
        reference = run.reference_of(mode)
        own_s, other_s = steps_s.get(mode.carrier), steps_s.get(carriers[reference])
        partial = mode_info(mode.carrier).gradients == "partial"
        if mode.paired or partial or own_s is None or not other_s or own_s <= other_s * (1 + MARGIN):
            continue
        found.setdefault(reference, []).append(f"{mode.text} by {format_percent(own_s / other_s - 1)}")
    return [f"predicted slower than {name} (simulated): {', '.join(slower)}" for name, slower in found.items()]


def clock(seconds: float) -> str:
    """Format a duration: '45 s', '6 min'."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min"
