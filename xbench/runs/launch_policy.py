"""Policy that decides before each launch whether the run continues, and with which modes.

`profile` and `compare` use `FixedLaunches`: a fixed number of launches of the same modes. `tune` decides after each
launch (`runs.tune`).
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

    def leg(self, number: int, found: Collector, plans: Sequence[JobPlan]) -> LaunchSpec | None:
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

    def leg(self, number: int, found: Collector, plans: Sequence[JobPlan]) -> LaunchSpec | None:
        """Return the launch, or None after the last."""
        if number >= (self.run.effort.launches if self.run.kind == "comparison" else 1):
            return None
        return LaunchSpec(self.run, phases(self.run, number, seed=self.run.workloads[0].seed))

    def ran(self, run: RunSpec) -> RunSpec:
        """Return the spec unchanged."""
        return run
