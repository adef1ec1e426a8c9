"""How a run goes on: asked before every launch, with what the run has found so far.

`Fixed` is what `profile` and `compare` do: as many launches as were asked for, each of the same modes. `tune` decides
anew after each (`runs.tune`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from xbench.rank.program import JobPlan, Phase, phases
from xbench.runs.event_collector import Collector
from xbench.spec import RunSpec


@dataclass(frozen=True)
class Leg:
    """One launch: the spec that its ranks read, and what they do."""

    run: RunSpec
    phases: tuple[Phase, ...]
    says: tuple[str, ...] = ()
    """Sentences for the user before it starts."""


class Course(Protocol):
    """Decides on each launch."""

    @property
    def launches(self) -> int | None:
        """How many there will be; None where that is not known beforehand."""

    def check(self, run: RunSpec) -> tuple[str, ...]:
        """Sentences about the resolved run, for the user. Raises SpecError where this course cannot go."""

    def leg(self, number: int, found: Collector, plans: Sequence[JobPlan]) -> Leg | None:
        """Launch `number`, counted from 0, or None when the run is over. `plans`: what the first launch learnt."""

    def ran(self, run: RunSpec) -> RunSpec:
        """The spec for the record: what really ran."""

    @property
    def warnings(self) -> Sequence[str]:
        """Sentences for the record."""


@dataclass(frozen=True)
class Fixed:
    """The launches that the effort names; one for a profile."""

    run: RunSpec
    warnings: tuple[str, ...] = ()

    @property
    def launches(self) -> int:
        """See `Course`."""
        return self.run.effort.launches

    def check(self, run: RunSpec) -> tuple[str, ...]:
        """See `Course`."""
        return ()

    def leg(self, number: int, found: Collector, plans: Sequence[JobPlan]) -> Leg | None:
        """See `Course`."""
        if number >= (self.run.effort.launches if self.run.kind == "comparison" else 1):
            return None
        return Leg(self.run, phases(self.run, number, seed=self.run.workloads[0].seed))

    def ran(self, run: RunSpec) -> RunSpec:
        """See `Course`."""
        return run
