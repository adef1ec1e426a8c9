"""Policy that decides before each launch whether the run goes on, and with which modes.

`profile` and `compare` use `FixedLaunches`: a fixed number of launches of the same modes. `tune` decides anew after
each launch (`runs.tune`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from xbench.rank.program import JobPlan, Phase, phases
from xbench.runs.event_collector import Collector
from xbench.spec import RunSpec


@dataclass(frozen=True)
class LaunchSpec:
    """One launch: the spec that its ranks read, and what they do."""

    run: RunSpec
    phases: tuple[Phase, ...]
    says: tuple[str, ...] = ()
    """Sentences for the user before it starts."""


class LaunchPolicy(Protocol):
    """Decides on each launch."""

    @property
    def launches(self) -> int | None:
        """How many there will be; None where that is not known beforehand."""

    def check(self, run: RunSpec) -> tuple[str, ...]:
        """Sentences about the resolved run, for the user. Raises SpecError where this course cannot go."""

    def leg(self, number: int, found: Collector, plans: Sequence[JobPlan]) -> LaunchSpec | None:
        """Launch `number`, counted from 0, or None when the run is over. `plans`: what the first launch learnt."""

    def ran(self, run: RunSpec) -> RunSpec:
        """The spec for the record: what really ran."""

    @property
    def warnings(self) -> Sequence[str]:
        """Sentences for the record."""


@dataclass(frozen=True)
class FixedLaunches:
    """The launches that the effort names; one for a profile."""

    run: RunSpec
    warnings: tuple[str, ...] = ()

    @property
    def launches(self) -> int:
        """See `LaunchPolicy`."""
        return self.run.effort.launches

    def check(self, run: RunSpec) -> tuple[str, ...]:
        """See `LaunchPolicy`."""
        return ()

    def leg(self, number: int, found: Collector, plans: Sequence[JobPlan]) -> LaunchSpec | None:
        """See `LaunchPolicy`."""
        if number >= (self.run.effort.launches if self.run.kind == "comparison" else 1):
            return None
        return LaunchSpec(self.run, phases(self.run, number, seed=self.run.workloads[0].seed))

    def ran(self, run: RunSpec) -> RunSpec:
        """See `LaunchPolicy`."""
        return run
