"""The ledger of a live cluster: whole lines, one holder, and a state that is made of nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from live_cases import began, entry, played

from xbench.cluster.live.ledger import LEDGER, JobArrived, Ledger, read
from xbench.cluster.live.state import AttemptState, LearnedSpeed, State
from xbench.cluster.speeds import TableSpeed
from xbench.errors import RecordError, RunError, SpecError


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    asked = began([entry("a"), entry("b", speeds=None, ring={"theta": [1.0, 0.0, 0.0, 0.0], "model_bytes": 8.0})])
    ledger = Ledger.begin(tmp_path / "run", asked)
    event = JobArrived(at_s=0.1 + 0.2, job="a")
    ledger.append(event)
    ledger.close()
    again, events = Ledger.resume(tmp_path / "run")
    again.close()
    assert events == [asked, event]


def test_a_line_is_on_the_disk_before_anything_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.begin(tmp_path, began([entry("a")]))
    synchronised: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synchronised.append((tmp_path / LEDGER).stat().st_size))
    ledger.append(JobArrived(at_s=0.0, job="a"))
    assert synchronised == [(tmp_path / LEDGER).stat().st_size]
    ledger.close()


@pytest.mark.parametrize("torn", [1, 5, 30])
def test_a_torn_last_line_is_cut_off(torn: int, tmp_path: Path) -> None:
    ledger = Ledger.begin(tmp_path, began([entry("a")]))
    ledger.append(JobArrived(at_s=0.0, job="a"))
    ledger.close()
    path = tmp_path / LEDGER
    data = path.read_bytes()
    path.write_bytes(data[:-torn])
    again, events = Ledger.resume(tmp_path)
    assert len(events) == 1
    again.append(JobArrived(at_s=1.0, job="a"))
    again.close()
    assert [event.at_s for event in read(tmp_path)[0] if isinstance(event, JobArrived)] == [1.0]


def test_a_broken_line_is_refused(tmp_path: Path) -> None:
    Ledger.begin(tmp_path, began([entry("a")])).close()
    path = tmp_path / LEDGER
    path.write_bytes(path.read_bytes() + b'{"event": "arived", "at_s": 0}\n')
    with pytest.raises(RecordError, match="is not a ledger of xbench: line 2"):
        Ledger.resume(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(RecordError, match="does not contain the request"):
        Ledger.resume(tmp_path)


def test_one_controller_a_folder(tmp_path: Path) -> None:
    ledger = Ledger.begin(tmp_path, began([entry("a")]))
    with pytest.raises(RunError, match="another controller runs the jobs in"):
        Ledger.resume(tmp_path)
    ledger.close()
    Ledger.resume(tmp_path)[0].close()


def test_a_folder_holds_one_run(tmp_path: Path) -> None:
    Ledger.begin(tmp_path, began([entry("a")])).close()
    with pytest.raises(SpecError, match="has a run in it already") as caught:
        Ledger.begin(tmp_path, began([entry("b")]))
    assert "--resume" in (caught.value.hint or "")
    with pytest.raises(SpecError, match="there is no run in"):
        Ledger.resume(tmp_path / "other")


@pytest.mark.parametrize("name", ["record.json", "frame.json", "jobs"])
def test_a_folder_with_the_files_of_another_run_is_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(SpecError, match=f"has '{name}' of another run in it") as caught:
        Ledger.begin(tmp_path, began([entry("a")]))
    assert caught.value.hint == "name another --folder"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_policy_that_answers_otherwise_is_noticed(tmp_path: Path) -> None:
    played(began([entry("a")], "fifo", 2), tmp_path)
    path = tmp_path / LEDGER
    lines = path.read_text().splitlines()
    place = next(number for number, line in enumerate(lines) if json.loads(line)["event"] == "decided")
    changed = json.loads(lines[place])
    changed["grants"] = {"a": 2}
    lines[place] = json.dumps(changed)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(RecordError, match=r"decides \{'a': 1\}"):
        State.of(read(tmp_path)[0])


def test_a_learned_speed() -> None:
    declared = LearnedSpeed(TableSpeed.of({1: 10.0, 2: 16.0, 4: 20.0}))
    assert declared.sizes == (1, 2, 3, 4)
    assert declared(2) == 16.0
    declared.seen[1] = 5.0  # half as fast as was declared, and so it is taken to be everywhere
    assert (declared(1), declared(2), declared(4)) == (5.0, 8.0, 10.0)
    guessed = LearnedSpeed(None)
    assert (guessed.sizes, guessed(3)) == (None, 1.0)
    guessed.seen |= {2: 7.0, 4: 9.0}
    assert (guessed(1), guessed(2), guessed(3), guessed(8)) == (7.0, 7.0, 7.0, 9.0)
    assert LearnedSpeed(None, (2,)).sizes == (2,)


def test_the_overhead_of_an_attempt() -> None:
    one = AttemptState((0, 1), 10.0, 50, first=(14.0, 50), last=(24.0, 150), ended_s=27.0, how="stopped", end_steps=160)
    assert one.speed == 10.0
    assert one.overhead_s == 17.0 - 11.0
    assert AttemptState((0,), 10.0, 50, ended_s=12.0, how="stopped", end_steps=51).overhead_s is None
