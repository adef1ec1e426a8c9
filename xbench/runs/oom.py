"""What a run does when a rank runs out of memory in one mode: that mode has failed, and the others go on.

Within a step this cannot be agreed on among the ranks. The one that found no memory has launched some of the step's
collectives and will not launch the rest, while the others wait in them; and the communicator is of no use to anybody
until it was ended on all of them. So the launch is ended as for any error, which frees all memory and ends all
collectives by ending their processes, and what is left of its phases runs in ranks started anew, without that mode.

A round of blocks that was interrupted is timed again as a whole: its modes are compared with each other, and that is
fair among blocks of the same processes only. What was measured before it is kept. The new ranks belong to the same
launch, so its spread holds what another start changes, too.

A run ends where no mode is to blame: memory that runs out while profiling, or in the steps of DDP that every mode is
checked against, when the run has no mode `ddp` or that has failed already. So does a run inside torchrun, whose ranks
are not ours to start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xbench.rank.program import Phase


class OomTracker:
    """Hears the events of all ranks; knows which modes ran out of memory and what was under way."""

    def __init__(self, modes: Sequence[str]) -> None:
        self._modes = tuple(modes)
        self._failed: set[str] = set()
        self._short: str | None = None
        self._phase: dict[tuple[int, int], int] = {}
        self._at = 0

    def begin(self) -> None:
        """Ranks are about to be started."""
        self._short, self._at = None, 0
        self._phase.clear()

    def take(self, job: int, rank: int, event: Mapping[str, Any]) -> None:
        """Take one journal event. The first rank that says so counts."""
        if event["event"] == "phase":
            self._phase[job, rank] = int(event["number"])
        elif event["event"] == "error" and event.get("short_in") and self._short is None:
            self._short, self._at = str(event["short_in"]), self._phase.get((job, rank), 0)

    def failed(self) -> str | None:
        """The mode that ended the launch by running out of memory, once each; None where none did."""
        mode = self._short
        if mode is None or mode not in self._modes or mode in self._failed:
            return None
        self._failed.add(mode)
        return mode

    def without(self, phases: Sequence[Phase]) -> tuple[Phase, ...]:
        """The phases, but those of modes that have failed so."""
        return tuple(phase for phase in phases if phase.mode not in self._failed)

    def rest(self, phases: Sequence[Phase]) -> tuple[Phase, ...]:
        """What is left to do of the phases of the launch that has ended: from the round on that was interrupted."""
        if not phases:
            return ()
        at = phases[self._at]
        rounds = (number for number, phase in enumerate(phases) if phase.kind == "block" and phase.round == at.round)
        start = next(rounds, self._at) if at.kind == "block" else self._at
        return self.without(phases[start:])
