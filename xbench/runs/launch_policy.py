"""Policy that decides before each launch whether the run continues, and with which modes.

`profile` and `compare` use `FixedLaunches`: a fixed number of launches of the same modes. `tune` decides after each
launch (`runs.tune`).

A rank that runs out of memory in one mode makes the mode fail, and the others continue (`OomTracker`). Ranks cannot
agree on this within a step. The rank without memory has launched some of the step's collectives and will not launch the
rest, while the others wait in them. The communicator is unusable until all ranks have ended it. So the launch is ended
as for any error. Ending the processes frees all memory and ends all collectives. The remaining phases run in newly
started ranks, without that mode.

A mode that runs out of memory while its steps are recorded, after all blocks of the launch, has not failed. The launch
ends there, and a warning says so.

An interrupted round of blocks is timed again as a whole. Its modes are compared with each other, which is fair only
among blocks of the same processes. Earlier measurements are kept. The new ranks belong to the same launch, so its
spread includes the effect of another start.

A run ends if no mode is the cause. Memory may run out during the profile. It may also run out in the steps of DDP that
every mode is checked against, if mode `ddp` is not in the run or has already failed. A run inside torchrun ends too,
because we do not start its ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from xbench.rank.events import Event, PhaseBegan, RankFailed
from xbench.rank.program import JobPlan, Phase, phases
from xbench.runs.event_collector import Collector
from xbench.spec import RunSpec


@dataclass(frozen=True)
class LaunchSpec:
    """One launch: the spec that its ranks read, and their phases."""

    run: RunSpec
    phases: tuple[Phase, ...]
    says: tuple[str, ...] = ()
    """Messages for the user before it starts."""


class LaunchPolicy(Protocol):
    """Policy that decides on each launch."""

    @property
    def launches(self) -> int | None:
        """Number of launches; None if it is not known beforehand."""

    def check(self, run: RunSpec) -> tuple[str, ...]:
        """Return messages for the user about the resolved run. Raises SpecError if the policy cannot run it."""

    def next_launch(self, number: int, found: Collector, plans: Sequence[JobPlan]) -> LaunchSpec | None:
        """Return launch `number`, counted from 0, or None if the run is over. `plans` are the first launch's."""

    def ran(self, run: RunSpec) -> RunSpec:
        """Return the spec of what really ran, for the record."""

    @property
    def warnings(self) -> Sequence[str]:
        """Sentences for the record."""


@dataclass(frozen=True)
class FixedLaunches:
    """Policy with the effort's number of launches; one for a profile."""

    run: RunSpec
    warnings: tuple[str, ...] = ()

    @property
    def launches(self) -> int:
        """Number of launches that the effort sets."""
        return self.run.effort.launches

    def check(self, run: RunSpec) -> tuple[str, ...]:
        """Accept every run."""
        return ()

    def next_launch(self, number: int, found: Collector, plans: Sequence[JobPlan]) -> LaunchSpec | None:
        """Return the launch, or None after the last."""
        if number >= (self.run.effort.launches if self.run.kind == "comparison" else 1):
            return None
        return LaunchSpec(self.run, phases(self.run, number, seed=self.run.workloads[0].seed))

    def ran(self, run: RunSpec) -> RunSpec:
        """Return the spec unchanged."""
        return run


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
        """Return the mode whose recorded steps, which follow all blocks, ran out of memory; None if none did."""
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
