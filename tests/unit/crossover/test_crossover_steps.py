"""The step loop of a job in turns, call by call."""

from __future__ import annotations

import contextlib

import pytest

from xbench.crossover.job import crossover_steps
from xbench.errors import RunError


class FakeTurns:
    """Turns that are always free, and write down what happens."""

    def __init__(self, log: list[str], *, gone: bool = False) -> None:
        self.log = log
        self.gone = gone

    @contextlib.contextmanager
    def turn(self):
        self.log.append("acquire")
        try:
            yield
        finally:
            self.log.append("release")

    def end_block(self):
        self.log.append("end block")
        if self.gone:
            raise RunError("job 0 on device 0 lost its turn arbiter")


def run(steps: int, *, fail: str | None = None, at: int = 1, gone: bool = False) -> tuple[list[str], Exception | None]:
    """The log of a run in which the `at`-th call of `fail` raises, and what was raised."""
    log: list[str] = []

    def call(name):
        def act():
            log.append(name)
            if name == fail and log.count(name) == at:
                raise ValueError(name)

        return act

    try:
        crossover_steps(
            FakeTurns(log, gone=gone),
            steps,
            wait_gradients=call("wait"),
            apply=call("apply"),
            forward_backward=call("compute"),
            mark=call("mark"),
        )
    except Exception as error:
        return log, error
    return log, None


FIRST = ["acquire", "compute", "release", "mark"]
NEXT = ["wait", "acquire", "apply", "compute", "release", "mark"]
LAST = ["end block", "wait", "apply"]


def test_gradients_are_waited_for_outside_the_turn_and_applied_inside_the_next():
    assert run(3) == ([*FIRST, *NEXT, *NEXT, *LAST], None)


def test_one_step_is_whole():
    assert run(1) == ([*FIRST, *LAST], None)


def test_no_steps_end_the_block_and_touch_nothing():
    assert run(0) == (["end block"], None)


@pytest.mark.parametrize(
    ("fail", "at", "expected"),
    [
        ("compute", 1, ["acquire", "compute", "release", "end block"]),
        ("mark", 1, [*FIRST, "end block"]),
        ("wait", 1, [*FIRST, "wait", "end block"]),
        ("apply", 1, [*FIRST, "wait", "acquire", "apply", "release", "end block"]),
        ("compute", 3, [*FIRST, *NEXT, "wait", "acquire", "apply", "compute", "release", "end block"]),
        ("wait", 2, [*FIRST, *NEXT, "end block", "wait"]),
        ("apply", 2, [*FIRST, *NEXT, *LAST]),
    ],
)
def test_a_step_that_raises_gives_back_the_turn_and_ends_the_block_once(fail, at, expected):
    log, error = run(2 if at == 2 else 3, fail=fail, at=at)
    assert log == expected
    assert isinstance(error, ValueError)
    assert str(error) == fail


def test_the_steps_own_error_is_the_one_that_is_seen_when_the_arbiter_is_gone_too():
    _, error = run(3, fail="compute", gone=True)
    assert isinstance(error, ValueError)


def test_a_lost_arbiter_at_the_end_is_an_error():
    log, error = run(1, gone=True)
    assert isinstance(error, RunError)
    assert log == [*FIRST, "end block"]
