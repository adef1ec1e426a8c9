"""What a restart took, from journals; whether a loss curve goes on; and the record in every format."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import sample_restarts as made
from click.testing import CliRunner

from xbench.cluster.compare import parse_costs
from xbench.commands.cluster import cluster
from xbench.errors import Interrupted, RecordError, SpecError
from xbench.records import Restart, dump, load, loads, save
from xbench.report import cases, markdown, terminal
from xbench.report.html.parts import figures
from xbench.report.html.restart import restart_page
from xbench.report.tables import tables
from xbench.runtime.cluster import restart as restarting
from xbench.runtime.cluster.restart import RestartRequest, compare_losses, loss_sentence, measure, times_of
from xbench.runtime.run_folder import keep

GOLDEN = Path(__file__).parents[2] / "golden"
BATCH_NORM = "batch normalisation takes its statistics over a worker's own samples"


def golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("XBENCH_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def event(name: str, t: float, **fields: Any) -> dict[str, Any]:
    return {"event": name, "t": t, **fields}


STOPPED = [
    event("step", 9.0, step=6, loss=1.0),
    event("step", 10.5, step=7, loss=1.0),
    event("kept", 11.25, steps=7, began_s=10.5),
    event("end", 11.25, how="stopped", steps=7),
]
STARTED = [
    event("hello", 15.0, rank=0, pid=1, started_s=13.0),
    event("joined", 15.5),
    event("built", 16.5),
    event("loaded", 16.75, steps=7, skipped=[]),
    event("ready", 17.0),
    event("step", 20.0, step=8, loss=1.0),
    event("step", 21.0, step=9, loss=1.0),
    event("step", 23.0, step=10, loss=1.0),
    event("step", 24.0, step=11, loss=1.0),
]


def test_the_parts_of_a_restart() -> None:
    found = times_of(STOPPED, STARTED, asked_s=10.0, gone_s=12.0, from_workers=1, to_workers=2)
    assert found.model_dump() == {
        "from_workers": 1, "to_workers": 2, "steps": 7, "last_step_s": 0.5, "checkpoint_s": 0.75, "teardown_s": 0.75,
        "start_s": 1.0, "imports_s": 2.0, "join_s": 0.5, "build_s": 1.0, "load_s": 0.5, "first_step_s": 3.0,
        "step_s": 1.0,
    }  # fmt: skip
    assert found.launch_s == 5.0
    assert found.total_s == 10.0 == STARTED[5]["t"] - 10.0
    assert found.lost_s == 8.5


def test_a_step_that_ended_as_the_stop_was_asked_for() -> None:
    found = times_of(STOPPED, STARTED, asked_s=10.75, gone_s=12.0, from_workers=1, to_workers=2)
    assert (found.last_step_s, found.checkpoint_s) == (0.0, 0.5)
    assert found.total_s == 20.0 - 10.75


def test_curves_that_are_one() -> None:
    check = compare_losses({1: 2.0, 2: 1.001}, {1: 2.0, 2: 1.0}, 1e-2, [1, 2], [])
    assert check.held
    assert check.worst == pytest.approx(1e-3)
    assert (check.worst_step, check.steps) == (2, 2)
    assert not compare_losses({1: 2.0, 2: 1.001}, {1: 2.0, 2: 1.0}, 1e-4, [1, 2], []).held


@pytest.mark.parametrize(
    ("cut", "uncut", "step"),
    [
        ({1: 1.0, 3: 1.0}, {1: 1.0, 2: 1.0, 3: 1.0}, 2),
        ({1: 1.0, 2: 1.0}, {1: 1.0}, 2),
        ({1: 1.0, 2: math.nan}, {1: 1.0, 2: math.nan}, 2),
        ({1: math.inf}, {1: 1.0}, 1),
    ],
)
def test_a_step_that_is_missing_or_no_number_does_not_go_on(
    cut: dict[int, float], uncut: dict[int, float], step: int
) -> None:
    check = compare_losses(cut, uncut, 1e-3, [1, 2], [])
    assert not check.held
    assert (check.worst, check.worst_step) == (None, step)


def test_curves_that_are_the_same_bit_by_bit() -> None:
    check = compare_losses({1: 2.0, 2: 1.5}, {1: 2.0, 2: 1.5}, 1e-4, [1, 1], [])
    assert loss_sentence(check) == (
        "The loss curve goes on: 2 steps against a run without a stop, every loss the same to the last bit."
    )


def test_losses_of_zero_differ_by_what_they_differ() -> None:
    assert compare_losses({1: 0.0}, {1: 0.0}, 0.0, [1], []).held
    assert compare_losses({1: 0.25}, {1: 0.0}, 1e-3, [1], []).worst == 0.25


def test_the_file_format() -> None:
    golden("restart-v1.json", dump(made.restart()))
    assert load(GOLDEN / "restart-v1.json") == loads(dump(made.restart())) == made.restart()


@pytest.mark.parametrize("width", [140, 100, 60, 40])
def test_golden_text(width: int) -> None:
    text = terminal.render(made.restart(), width=width)
    golden(f"restart-{width}.txt", text)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text


def test_golden_markdown() -> None:
    golden("restart.md", markdown.render(made.restart(held=False, depends=(BATCH_NORM,))))


def test_one_case_a_part_and_one_for_the_loss_curve() -> None:
    for held, status in ((True, "passed"), (False, "failed")):
        *parts, last = cases.cases(made.restart(held=held))
        assert [case.name for case in parts] == [
            "last step", "checkpoint", "tear-down", "launch", "first step", "total", "lost",
        ]  # fmt: skip
        assert {case.status for case in parts} == {"passed"}
        assert (last.name, last.status) == ("loss curve", status)


def test_tables_are_rectangular_and_labelled() -> None:
    found = tables(made.restart())
    assert {name: len(rows) for name, rows in found.items()} == {"restarts": 4, "results": 21, "losses": 5}
    for rows in found.values():
        assert len({tuple(row) for row in rows}) == 1
        assert {row["label"] for row in rows} == {"real"}


def test_the_page_draws_the_record_s_numbers() -> None:
    record = made.restart()
    page = restart_page(record)
    found = {figure.key: figure for figure in figures(page)}
    assert list(found) == ["restart-parts", "losses"]
    lengths = [sum(trace["x"][place] for trace in found["restart-parts"].traces) for place in range(4)]
    assert lengths == pytest.approx([one.total_s for one in record.restarts], rel=1e-3)
    assert [trace["y"] for trace in found["losses"].traces] == [record.uncut_losses, record.losses]
    assert page.failures == []
    assert restart_page(made.restart(held=False)).failures != []


def test_what_was_measured_is_what_the_simulator_charges(tmp_path: Path) -> None:
    record = made.restart()
    path = save(record, tmp_path / "restart.json")
    assert record.cost_s == pytest.approx(3.0 - 0.02 - 0.05 + 0.15)
    assert parse_costs(f"0,{path},30") == (0.0, round(record.cost_s, 3), 30.0)


def test_other_files_are_no_costs(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="is a cluster record, which measured no restart"):
        parse_costs(str(GOLDEN / "cluster-v1.json"))
    with pytest.raises(RecordError, match="there is no result file"):
        parse_costs(str(tmp_path / "restart.json"))
    with pytest.raises(SpecError, match="'soon' is no number of seconds"):
        parse_costs("0,soon")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"start": 2, "to": 2}, "--from 2 --to 2 restarts with as many workers"),
        ({"workload": "resnet18:batch-size=4"}, "has a batch size of its own"),
        ({"workload": "resnet5000"}, "resnet5000"),
        ({"batch_size": 1}, "--batch-size 1 cannot be shared by 2 workers"),
        ({"to": 1000}, "1000 workers want a core each"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_launched(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], said: str
) -> None:
    def launched(*_: object, **__: object) -> None:
        raise AssertionError("something was launched")

    monkeypatch.setattr("subprocess.Popen", launched)
    with pytest.raises(SpecError, match=said):
        measure(RestartRequest(**{"workload": "resnet18", "device": "cpu", **fields}), lambda _: None)


@pytest.mark.parametrize("held", [True, False])
def test_the_exit_code_tells_whether_the_loss_curve_goes_on(monkeypatch: pytest.MonkeyPatch, held: bool) -> None:
    monkeypatch.setattr(restarting, "measure", lambda *_: (made.restart(held=held), Path("record.json"), None))
    outcome = CliRunner().invoke(cluster, ["restart", "resnet18", "--json", "-"], standalone_mode=False)
    assert outcome.return_value == (0 if held else 3)
    assert loads(outcome.stdout) == made.restart(held=held)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_keeps_the_restarts_that_were_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals
) -> None:
    def stopped(*given: Any) -> Restart:
        folder = given[4]
        (folder / "work").mkdir()
        (folder / "restarts.jsonl").write_text(made.restart().restarts[0].model_dump_json() + "\n")
        os.kill(os.getpid(), number)
        raise AssertionError("went on")

    monkeypatch.setattr(restarting, "_checked", lambda request: (None, None, "cpu"))
    monkeypatch.setattr(restarting, "_measured", stopped)
    with pytest.raises(Interrupted) as ended:
        measure(RestartRequest("resnet18"), lambda said: None, tmp_path)
    (folder,) = tmp_path.iterdir()
    assert [path.name for path in folder.iterdir()] == ["restarts.jsonl"]
    assert ended.value.hint == f"{folder / 'restarts.jsonl'} has the restarts that were timed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_while_the_record_is_saved_comes_after_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals
) -> None:
    def slowly(record: Restart, path: Path) -> Path:
        os.kill(os.getpid(), number)
        return keep(record, path)

    monkeypatch.setattr(restarting, "_checked", lambda request: (None, None, "cpu"))
    monkeypatch.setattr(restarting, "_measured", lambda *_: made.restart())
    monkeypatch.setattr(restarting, "keep", slowly)
    record, path, interrupted = measure(RestartRequest("resnet18"), lambda said: None, tmp_path)
    assert isinstance(interrupted, Interrupted)
    assert load(path) == record == made.restart()
