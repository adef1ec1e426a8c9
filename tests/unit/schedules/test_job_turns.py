"""Jobs in turns in one process, call by call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from xbench.schedules.job_turns import JobTurns, steps_in_turns, turn_order


def played(pattern: tuple[int, ...], *turns: int, fail: str | None = None) -> tuple[list[str], str | None]:
    """The calls of a block, and the text of the error that the call `fail` raised."""
    log: list[str] = []

    def job(number: int) -> JobTurns:
        def call(what: str) -> None:
            log.append(f"{what} {number}")
            if log[-1] == fail:
                raise ValueError(fail)

        @contextlib.contextmanager
        def hold() -> Iterator[None]:
            log.append(f"take {number}")
            yield
            log.append(f"give {number}")

        return JobTurns(
            turns[number], lambda: call("update"), lambda: call("compute"), lambda: call("mark"), hold
        )  # fmt: skip

    try:
        steps_in_turns([job(number) for number in range(len(turns))], pattern)
    except ValueError as error:
        return log, str(error)
    return log, None


def turn(job: int, first: bool = False) -> list[str]:
    return [f"take {job}", *([] if first else [f"update {job}"]), f"compute {job}", f"give {job}", f"mark {job}"]


def test_an_update_waits_for_the_job_s_next_turn() -> None:
    log, error = played((0, 1), 2, 2)
    assert error is None
    assert log == [*turn(0, first=True), *turn(1, first=True), *turn(0), *turn(1), "update 0", "update 1"]


def test_a_job_may_have_two_turns_in_a_row() -> None:
    log, _ = played((0, 0, 1), 4, 2)
    assert [line for line in log if line.startswith("compute")] == [f"compute {job}" for job in (0, 0, 1, 0, 0, 1)]
    assert [log.count(f"update {job}") for job in (0, 1)] == [4, 2]  # one a step


def test_a_job_that_ends_first_is_passed_over() -> None:
    assert list(turn_order((0, 1), (1, 4))) == [0, 1, 1, 1, 1]
    assert list(turn_order((0, 0, 1), (4, 1))) == [0, 0, 1, 0, 0]
    log, _ = played((0, 1), 1, 2)
    assert log == [*turn(0, first=True), *turn(1, first=True), *turn(1), "update 0", "update 1"]


def test_a_job_without_turns_is_left_alone() -> None:
    assert played((0, 1), 0, 1) == ([*turn(1, first=True), "update 1"], None)
    assert played((0, 1), 0, 0) == ([], None)


def test_a_job_outside_the_pattern_cannot_have_turns() -> None:
    with pytest.raises(ValueError, match=r"^job 1 is not in the pattern \(0,\)$"):
        list(turn_order((0,), (1, 1)))
    assert list(turn_order((0,), (2, 0))) == [0, 0]


def test_an_error_of_one_job_ends_the_block_of_both() -> None:
    log, error = played((0, 1), 3, 3, fail="compute 1")
    assert error == "compute 1"
    assert log == [*turn(0, first=True), "take 1", "compute 1"]
    log, error = played((0, 1), 3, 3, fail="update 0")
    assert error == "update 0"
    assert log[-2:] == ["take 0", "update 0"]
