"""Random draws over fabric × phase × target × fault × delay: `draw(seed, n)` is the same for ever."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from .case import FABRICS, Case, after_signal, case
from .family_parent import at_save, before_ranks
from .family_ranks import after_change
from .faults import LINK_CHANGES, after, at, to_agent, to_parent, to_rank
from .harness import Plant
from .verdict import DONE, FAILED, Expected

TO_PARENT = ("kill", "term", "hup", "int", "int2", "int5", "pause")
TO_RANK = ("kill", "segv", "term", "stop", "int", "pause")
TO_AGENT = ("kill", "term", "stop")
WITH_RANKS = ("profile", "gate", "block", "round", "timeline", "end")
OF_LINKS = ("profile", "gate", "block", "round")
"""A link that changes later changes nothing that is timed."""
MAX_DELAY_S = 0.4


@dataclass(frozen=True)
class Drawn:
    """One situation: all that it depends on is in its name."""

    number: int
    fabric: str
    phase: str
    target: str
    fault: str
    delay_s: float
    index: int
    """Number of the rank or agent."""

    @property
    def name(self) -> str:
        """For the results: draw-017-shaped-round-rank1-kill."""
        which = str(self.index) if self.target in ("rank", "agent") else ""
        return f"draw-{self.number:03d}-{self.fabric}-{self.phase}-{self.target}{which}-{self.fault}"


def draw(seed: int, count: int) -> list[Drawn]:
    """The first draws of a seed; the n-th does not depend on how many are asked for."""
    return [_one(random.Random(f"{seed}/{number}"), number) for number in range(count)]


def _one(chance: random.Random, number: int) -> Drawn:
    fabric = chance.choice(tuple(FABRICS))
    phase = chance.choice(("probe", *WITH_RANKS, "save"))
    targets = ["parent"]
    if phase in WITH_RANKS:
        targets += ["rank", "agent"]
        targets += ["link"] if fabric == "shaped" and phase in OF_LINKS else []
    target = chance.choice(targets)
    faults = {
        "parent": TO_PARENT, "rank": TO_RANK, "agent": TO_AGENT, "link": tuple(LINK_CHANGES),
    }[target]  # fmt: skip
    delay_s = round(chance.uniform(0, MAX_DELAY_S), 3)
    return Drawn(
        number,
        fabric,
        phase,
        target,
        chance.choice(faults),
        delay_s,
        chance.randrange(2),
    )


def as_case(drawn: Drawn) -> Case:
    """The case of a draw."""
    if drawn.phase == "save":
        found = at_save(drawn.name, drawn.fabric, drawn.fault)
        return replace(found, expected=expected_of(drawn))
    plant = (
        after(1.0 + drawn.delay_s, _fault(drawn))
        if drawn.phase == "probe"
        else at(drawn.phase, _fault(drawn), drawn.delay_s)
    )
    return case(drawn.name, expected_of(drawn), kind=drawn.fabric, plant=plant)


def _fault(drawn: Drawn) -> Plant:
    if drawn.target == "parent":
        return to_parent(drawn.fault)
    if drawn.target == "rank":
        return to_rank(drawn.fault, drawn.index)
    if drawn.target == "agent":
        return to_agent(drawn.fault, drawn.index)
    return LINK_CHANGES[drawn.fault]


def expected_of(drawn: Drawn) -> Expected:
    """Expectation for a draw. Where the fault may come when the work is done, a run that ends well is right too."""
    late = drawn.phase in ("timeline", "end", "save")
    if drawn.target == "parent":
        expected = _of_parent(drawn)
    elif drawn.target == "link":
        # A link that is whole again may have been down in a warm-up step alone.
        whole_again = drawn.fault == "down-up"
        expected = Expected(codes=(DONE, FAILED)) if whole_again else after_change(drawn.fault)
    elif drawn.fault == "pause":  # shorter than the patience
        expected = Expected(codes=(DONE,))
    elif (drawn.target, drawn.fault) == ("agent", "stop"):  # ranks may end well beside it
        expected = Expected(codes=(DONE, FAILED))
    else:
        expected = Expected()
    if late:
        expected = replace(expected, codes=tuple({*expected.codes, DONE}), says=None)
    return replace(expected, unaimed=True)


def _of_parent(drawn: Drawn) -> Expected:
    if drawn.fault == "pause":
        return Expected(codes=(DONE,))
    return before_ranks(drawn.fault) if drawn.phase == "probe" else after_signal(drawn.fault)
