"""Two sides take turns: never both, in the order A-B-B-A, and nobody waits for one that is gone."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from xbench.regress import alternation
from xbench.regress.alternation import Turns, give_turns


class Side:
    """A side as a thread; `log` gets its name where a turn begins and its name in small where it ends."""

    def __init__(self, folder: Path, count: int, log: list[str], ends_in: int | None = None) -> None:
        folder.mkdir()
        self.folder, self._count, self._log, self._ends_in = folder, count, log, ends_in
        self.waited: list[str] = []
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        own = Turns(self.folder, leads=True, say=self.waited.append)
        for number in range(self._count):
            own.take()
            self._log.append(self.folder.name)
            if number == self._ends_in:
                return
            self._log.append(self.folder.name.lower())
            own.give()


def led(sides: list[Side]) -> None:
    give_turns([side.folder for side in sides], {side.folder: side.thread.is_alive for side in sides}, 60.0)
    for side in sides:
        side.thread.join(10)
        assert not side.thread.is_alive()


def test_turns_do_not_overlap_and_go_a_b_b_a(tmp_path: Path) -> None:
    log: list[str] = []
    led([Side(tmp_path / name, 4, log) for name in "AB"])
    assert "".join(log) == "AaBb" "BbAa" "AaBb" "BbAa"  # fmt: skip


@pytest.mark.parametrize("short", ["A", "B"])
def test_a_side_that_ended_early_is_not_waited_for(tmp_path: Path, short: str) -> None:
    log: list[str] = []
    led([Side(tmp_path / name, 3, log, ends_in=1 if name == short else None) for name in "AB"])
    other = "B" if short == "A" else "A"
    assert log.count(short) == 2
    assert log.count(other) == log.count(other.lower()) == 3


def test_sides_of_different_length_both_end(tmp_path: Path) -> None:
    log: list[str] = []
    led([Side(tmp_path / "A", 1, log), Side(tmp_path / "B", 5, log)])
    assert (log.count("a"), log.count("b")) == (1, 5)


def test_only_the_leader_speaks_for_its_side(tmp_path: Path) -> None:
    other = Turns(tmp_path, leads=False, say=pytest.fail)
    (tmp_path / "go-0").touch()
    other.take()
    other.give()
    assert [path.name for path in tmp_path.iterdir()] == ["go-0"]


def test_one_that_waits_long_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alternation, "SAY_S", 0.0)

    def say(sentence: str) -> None:
        assert sentence == "waiting for its turn"
        (tmp_path / "go-0").touch()

    Turns(tmp_path, leads=True, say=say).take()  # ends only because it said so


def test_a_side_that_lives_and_never_comes_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    give_turns([tmp_path], {tmp_path: lambda: True}, 0.05)
    assert not (tmp_path / "go-0").exists()
    (tmp_path / "at-0").touch()
    give_turns([tmp_path], {tmp_path: lambda: True}, 0.05)
    assert (tmp_path / "go-0").exists()
