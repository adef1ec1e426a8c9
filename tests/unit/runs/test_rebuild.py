"""The record of a killed run from what is on disk: the same as the live run's, as far as the journals go."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from samples_of_runs import LINK, MACHINE, A, block, collector_of, frame, record_of, run_of

from xbench import load_result
from xbench.cli import main
from xbench.errors import RecordError
from xbench.rank.events import BlockTimed, ModeTrained
from xbench.rank.journal import Journals
from xbench.record_files import FRAME
from xbench.records import Comparison, Convergence, Profile, Training, load
from xbench.runs.build_records import comparison_record
from xbench.runs.frames import ConvergenceFrame, write_frame
from xbench.runs.rebuild import WHY, launches

GOLDEN = Path(__file__).parents[2] / "golden"
MODES, ROUNDS, LAUNCHES = ("ddp", "single"), 3, 2
RUN = run_of(",".join(MODES))


def blocks(launch: int) -> list[BlockTimed]:
    found = []
    for number in range(ROUNDS * len(MODES)):
        began_s = 100.0 * launch + 10.0 * number
        stamps = [began_s + 0.1 * place * (1 + number % 2) for place in range(6)]
        found.append(block(MODES[number % 2], stamps, number // 2, position=number, t=began_s + 9.0))
    return found


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The folder of a comparison of two launches killed when both were done; beside it the live run's record."""
    folder = tmp_path / "20260131-142501-comparison-resnet18"
    folder.mkdir()
    live = collector_of(RUN)
    live.failed["single:x"] = "it ran out of memory"
    stored = frame(RUN, warnings=["the machine was busy"], failed=live.failed)
    write_frame(stored, folder)
    for launch in range(LAUNCHES):
        live.begin_launch(launch)
        journals = Journals(folder / f"launch{launch}")
        for event in blocks(launch):
            for rank in range(2):
                journals.take(0, rank, event)
                live.take(0, rank, event)
    record = comparison_record(stored, live, WHY)
    (tmp_path / "live.json").write_text(record.model_dump_json())
    return folder


def test_the_rebuilt_record_is_the_live_runs_marked_incomplete(killed: Path) -> None:
    expected = Comparison.model_validate_json((killed.parent / "live.json").read_text())
    before = sorted(killed.rglob("*"))
    for path in (killed, killed / "record.json"):
        assert load(path) == expected
    assert not expected.complete
    assert len(expected.samples) == LAUNCHES * ROUNDS * len(MODES)
    assert load_result(killed) == expected
    assert sorted(killed.rglob("*")) == before  # reading writes nothing


def test_report_shows_it_and_saves_it_where_it_is_asked_to(
    killed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(killed), "--json", str(tmp_path / "saved.json")]) == 0
    out = capsys.readouterr().out
    assert "INCOMPLETE" in out
    assert "rebuilt from the journals" in " ".join(out.split())
    assert load(tmp_path / "saved.json") == load(killed)


def test_a_record_that_is_there_is_read(killed: Path) -> None:
    (killed / "record.json").write_bytes((GOLDEN / "profile-v1.json").read_bytes())
    assert isinstance(load(killed), Profile)


@pytest.mark.parametrize("seed", range(30))
def test_a_journal_cut_off_at_any_byte_loses_no_earlier_block(killed: Path, seed: int) -> None:
    draw = random.Random(seed)
    whole: dict[tuple[int, str, int], set[int]] = {}
    for number, launch in launches(killed):
        for rank in range(2):
            path = launch / f"job0-rank{rank}.jsonl"
            data = path.read_bytes()
            data = data[: draw.randrange(len(data) + 1)]
            path.write_bytes(data)
            for line in data[: data.rfind(b"\n") + 1].splitlines():
                event = json.loads(line)
                whole.setdefault((number, event["mode"], event["round"]), set()).add(rank)
    record = load(killed)
    assert isinstance(record, Comparison)
    expected = {key for key, ranks in whole.items() if ranks == {0, 1}}
    assert {(sample.launch, sample.mode, sample.round) for sample in record.samples} == expected


@pytest.mark.parametrize("seed", range(10))
def test_a_byte_changed_in_the_middle_is_told_or_harmless(killed: Path, seed: int) -> None:
    draw = random.Random(seed)
    path = killed / "launch1" / "job0-rank1.jsonl"
    data = bytearray(path.read_bytes())
    end = data.index(b"\n")
    data[draw.randrange(end)] = 0xFF  # no UTF-8
    path.write_bytes(data)
    record = load(killed)
    assert isinstance(record, Comparison)
    assert len(record.samples) == LAUNCHES * ROUNDS * len(MODES) - 1
    assert any("broken line" in warning for warning in record.warnings)


@pytest.mark.parametrize(
    "event", [{"event": "block"}, {"event": "block", "mode": 3, "round": [], "stamps": 4}, {"event": "profile", "t": 1}]
)
def test_an_event_that_says_too_little_is_left_out_or_refused(killed: Path, event: dict[str, Any]) -> None:
    with (killed / "launch1" / "job0-rank1.jsonl").open("a") as stream:
        stream.write(json.dumps(event) + "\n")
    record = load(killed)
    assert any("was left out" in warning for warning in record.warnings)  # type: ignore[union-attr]


def test_journals_that_make_no_record_are_one_sentence(killed: Path) -> None:
    with (killed / "launch1" / "job0-rank1.jsonl").open("a") as stream:
        stream.write(blocks(1)[0].model_copy(update={"mode": "unheard of"}).line())
    with pytest.raises(RecordError, match="no record can be made of the journals in"):
        load(killed)
    (killed / FRAME).write_text('{"kind": "measured"}')
    with pytest.raises(RecordError, match=r"frame.json' says nothing that a record can be made of"):
        load(killed)


def test_a_second_start_of_a_launch_comes_after_the_first(tmp_path: Path) -> None:
    for name in ("launch10", "launch2", "launch2-2", "launch2-10", "launchpad", "launch1"):
        (tmp_path / name).mkdir()
    names = [path.name for _, path in launches(tmp_path)]
    assert names == ["launch1", "launch2", "launch2-2", "launch2-10", "launch10"]


def test_finished_trainings_of_a_killed_study_are_its_curves(tmp_path: Path) -> None:
    training = Training(seeds=[0, 1], steps=4, samples=32, epochs=1.0, batch_size=4, optimizer="sgd", lr=0.01)
    stored = ConvergenceFrame(
        created="2026-01-31T14:25:01+00:00", command="xbench converge", run=RUN, environment=MACHINE, fabric=LINK,
        label="real", workload=record_of(A), training=training, an_epoch=4, warnings=[],
    )  # fmt: skip
    write_frame(stored, tmp_path)
    journals = Journals(tmp_path)
    trained = ModeTrained(
        mode="ddp", seed=0, train_loss=[2.0, 1.5, 1.2, 1.0], test_loss=[1.0], test_accuracy=[0.9], steps_s=[0.1] * 4,
        sent_bytes=None, digest="a", device_peak_bytes=None,
    )  # fmt: skip
    for rank in range(2):
        journals.take(0, rank, trained)
    journals.take(0, 0, trained.model_copy(update={"seed": 1}))
    record = load(tmp_path)
    assert isinstance(record, Convergence)
    assert [(curve.mode, curve.seed) for curve in record.curves] == [("ddp", 0)]
    assert not record.complete
    assert record.error == WHY
