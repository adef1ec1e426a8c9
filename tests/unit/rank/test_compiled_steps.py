"""Steps before a compiled mode is timed, and warnings about code that is compiled late."""

from __future__ import annotations

from typing import Any

import pytest

from xbench.rank import session as session_module
from xbench.rank.events import Warned
from xbench.rank.session import MAX_STEPS, late_compilations, settle
from xbench.schedules import parse_mode

DDP, COMPILED = parse_mode("ddp"), parse_mode("ddp+compile")


class CompilingSession:
    """A session whose steps compile `pieces[n]` pieces of code, on rank 0 or on the other one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, mine: list[int], others: list[int]) -> None:
        self.device, self.steps, self.compiled, self.said = "cpu", 0, 0, []
        self.mine, self.others = mine, others
        self.journal: Any = self
        monkeypatch.setattr(session_module, "compilations", lambda: self.compiled)
        monkeypatch.setattr(session_module.dist, "all_reduce", self.all_reduce)

    def write(self, event: Warned) -> None:
        self.said.append(event.message)

    def train(self, handle: Any, steps: int, what: str, mark: Any) -> None:
        assert steps == 1
        self.compiled += self.mine[self.steps] if self.steps < len(self.mine) else 0
        self.steps += 1

    def all_reduce(self, value: Any, op: Any) -> None:
        if self.steps <= len(self.others) and self.others[self.steps - 1]:
            value.fill_(1.0)


@pytest.mark.parametrize(
    ("mode", "mine", "others", "steps"),
    [
        (COMPILED, [3], [], 2),
        (COMPILED, [3, 1], [], 3),
        (COMPILED, [], [], 1),
        (COMPILED, [2], [2, 1, 1], 4),
        (COMPILED, [2, 0, 1], [], 2),
        (DDP, [1], [], 0),
    ],
)
def test_steps_are_taken_until_no_rank_compiles(
    monkeypatch: pytest.MonkeyPatch, mode: Any, mine: list[int], others: list[int], steps: int
) -> None:
    session: Any = CompilingSession(monkeypatch, mine, others)
    settle(session, mode, session, "round 1")
    assert (session.steps, session.said) == (steps, [])


def test_code_that_always_compiles_is_timed_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = CompilingSession(monkeypatch, [1] * 100, [])
    settle(session, COMPILED, session, "round 1 ddp+compile")
    assert session.steps == MAX_STEPS
    assert session.said == [f"ddp+compile: torch.compile has not come to an end in {MAX_STEPS} steps"]


@pytest.mark.parametrize(("mode", "late", "said"), [(COMPILED, 0, 0), (COMPILED, 2, 1), (DDP, 2, 0)])
def test_late_compilations_are_told(monkeypatch: pytest.MonkeyPatch, mode: Any, late: int, said: int) -> None:
    session: Any = CompilingSession(monkeypatch, [], [])
    with late_compilations(session, mode, "round 2 ddp+compile"):
        session.compiled += late
    told = ["round 2 ddp+compile: torch.compile ran again while it was timed (2 times)"]
    assert session.said == told[:said]
