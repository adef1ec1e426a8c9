"""How given ranks learn of each other's end: fake store, fake clock, no threads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest
from launch_world import Store, block, error

from xbench.errors import XbenchError
from xbench.launch import heartbeat
from xbench.launch.heartbeat import GONE_S, HeartbeatMonitor
from xbench.launch.monitor import COLLECT_S
from xbench.launch.rendezvous import RankAssignment
from xbench.rank.events import Event, PhaseBegan, RankEnded, RankStarted
from xbench.rank.journal import Journal, JournalReader


class Left(BaseException):
    """A process ended itself, with this code or error."""


class Ranks:
    """Watches of some ranks over one store, and one clock that moves when told."""

    def __init__(self, folder: Path, world: int, silence_s: float = 20.0) -> None:
        self.now = 100.0
        self.store = Store()
        self.taken: list[tuple[int, int, str]] = []
        self.journals = []
        self.watches = []
        seats = [RankAssignment(rank, f"node{rank}", 0, 1) for rank in range(world)]
        for rank in range(world):
            place = folder / str(rank)
            place.mkdir()
            self.journals.append(Journal(place, 0, rank))
            self.journals[-1].write(RankStarted(rank=rank, pid=1))  # a number of each host's own
            self.watches.append(
                HeartbeatMonitor(
                    rank, seats, self.store, JournalReader(place, 0, rank), silence_s, self.take, self.abandon,
                    clock=self.clock, leave=self.leave,
                )
            )  # fmt: skip

    def clock(self) -> float:
        return self.now

    def take(self, job: int, rank: int, event: Event) -> None:
        self.taken.append((job, rank, event.event))

    def abandon(self, error: XbenchError) -> NoReturn:
        raise Left(f"abandoned: {error}")

    def leave(self, code: int) -> NoReturn:
        raise Left(code)

    def beat(self, *ranks: int, seconds: float = 1.0) -> None:
        self.now += seconds
        for rank in ranks:
            self.watches[rank].beat()


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    made = Ranks(tmp_path, 3)

    def sleep(seconds: float) -> None:
        made.now += seconds

    monkeypatch.setattr(heartbeat.time, "sleep", sleep)
    return made


def test_what_any_rank_measured_is_at_rank_0_a_beat_later(ranks: Ranks) -> None:
    ranks.journals[0].write(block())
    ranks.journals[2].write(PhaseBegan(name="profile"))
    ranks.journals[2].write(block())
    ranks.beat(2, 1, 0)
    ranks.beat(2, 1, 0)
    hello = [(0, rank, "hello") for rank in range(3)]
    assert sorted(ranks.taken) == sorted([*hello, (0, 0, "block"), (0, 2, "block"), (0, 2, "phase")])
    assert not [key for key in ranks.store.kept if key.startswith("events")]


def test_a_rank_that_fails_ends_all_with_its_own_words(ranks: Ranks) -> None:
    ranks.beat(0, 1, 2)
    ranks.journals[1].note("optimal step 3")
    ranks.journals[1].write(block())
    ranks.watches[1].fail(error("RuntimeError: out of luck"))
    assert (0, 1, "block") not in ranks.taken
    ranks.beat(0, 2)
    with pytest.raises(Left, match=r"abandoned: rank 1 on node1 \(optimal step 3\) raised RuntimeError: out of luck"):
        ranks.beat(0, seconds=COLLECT_S)
    assert (0, 1, "block") in ranks.taken
    with pytest.raises(Left, match="1"):
        ranks.beat(2)


def test_a_rank_that_lost_its_peers_is_an_effect_of_one_that_is_gone(ranks: Ranks) -> None:
    ranks.journals[2].note("round 1 ddp")
    ranks.beat(0, 1, 2)
    ranks.watches[1].fail(error("RuntimeError: Connection closed by peer"))
    ranks.beat(0)
    ranks.beat(0)
    with pytest.raises(Left, match=r"abandoned: rank 2 on node2 \(round 1 ddp\) disappeared"):
        ranks.beat(0, seconds=COLLECT_S + GONE_S)


def test_rank_0_that_lost_its_peers_names_who_is_gone(ranks: Ranks) -> None:
    ranks.beat(0, 1, 2)
    ranks.watches[1].beat()
    told = ranks.watches[0].fail(error("RuntimeError: Connection closed by peer"))
    assert str(told).startswith("rank 1 on node1 disappeared")  # neither beats while rank 0 listens
    assert ranks.store.kept["over"] == str(told)


def test_rank_0_s_own_error_is_told_when_nobody_knows_better(ranks: Ranks) -> None:
    ranks.beat(0, 1, 2)
    told = ranks.watches[0].fail(error("ValueError: no", hint="a hint"))
    assert str(told) == "rank 0 on node0 raised ValueError: no"
    assert told.hint == "a hint"


def test_a_silent_rank_ends_all(ranks: Ranks) -> None:
    ranks.beat(1, 2, 0)
    for _ in range(20):
        ranks.beat(1)
        ranks.journals[1].note(f"at {ranks.now}")
        ranks.watches[0].beat()
    ranks.beat(1, 0)
    with pytest.raises(Left, match="abandoned: rank 2 on node2 disappeared"):
        ranks.beat(1, 0)


def test_ranks_that_beat_and_never_move_are_hung(ranks: Ranks) -> None:
    ranks.journals[0].note("step 3: waiting for gradients")
    ranks.journals[1].note("step 2: computing")
    ranks.journals[2].note("step 3: waiting for gradients")
    for _ in range(20):
        ranks.beat(1, 2, 0)
    with pytest.raises(
        Left, match=r"abandoned: rank 1 on node1 \(step 2: computing\) gave no sign of life for 20 s, the limit of"
    ):
        ranks.beat(1, 2, 0)


def test_ranks_without_rank_0_end_themselves(ranks: Ranks, capsys: pytest.CaptureFixture[str]) -> None:
    ranks.beat(0, 1, 2)
    ranks.beat(1)
    with pytest.raises(Left, match="1"):
        ranks.beat(1, seconds=20.0 + GONE_S + 1)
    assert capsys.readouterr().err == "xbench rank 1: rank 0 gave no sign of life for 20 s\n"
    ranks.store.gone = True
    with pytest.raises(Left, match="1"):
        ranks.watches[2]._run()
    assert "xbench rank 2: the store at which the ranks meet is gone" in capsys.readouterr().err


def test_a_good_end_waits_for_all_events(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks.beat(0, 1, 2)
    ranks.journals[1].write(RankEnded())
    ranks.journals[2].write(RankEnded())
    for rank in (1, 2):
        ranks.watches[rank]._done = True
        ranks.watches[rank]._post()
    ranks.store.kept["byes"] = "2"
    ranks.watches[0].finish()
    assert [one for one in ranks.taken if one[2] == "end"] == [(0, 1, "end"), (0, 2, "end")]
    assert ranks.store.kept["over"] == ""
    ranks.watches[1].finish()
    assert json.loads(ranks.store.kept["alive/1"])[3] is True


def test_an_end_that_a_rank_does_not_come_to_names_it(ranks: Ranks) -> None:
    ranks.beat(0, 1, 2)
    ranks.journals[1].write(RankEnded())
    ranks.watches[1]._done = True
    ranks.watches[1]._post()
    with pytest.raises(XbenchError, match="rank 2 on node2 disappeared"):
        ranks.watches[0].finish()


def test_a_user_who_stops_rank_0_ends_all(ranks: Ranks) -> None:
    ranks.beat(0, 1, 2)
    ranks.watches[0].interrupted()
    assert ranks.store.kept["over"] == "interrupted"
    with pytest.raises(Left, match="1"):
        ranks.beat(1)
