"""What a restart took, from journals; whether a loss curve goes on; and the record in every format."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sample_restarts as made
from click.testing import CliRunner
from golden_file import GOLDEN, golden

from xbench.cluster.compare import parse_costs
from xbench.cluster.live import restart as restarting
from xbench.cluster.live.restart import RestartRequest, measure
from xbench.cluster.live.restart_result import compare_losses, loss_sentence, times_of
from xbench.commands.cluster import cluster
from xbench.errors import Interrupted, RecordError, RunError, SpecError
from xbench.rank.events import (
    CheckpointKept,
    CheckpointLoaded,
    GroupJoined,
    ModelBuilt,
    RankEnded,
    RankReady,
    RankStarted,
    StepTrained,
)
from xbench.records import Restart, dump, load, loads, save
from xbench.report.formats import junit, markdown, terminal
from xbench.report.kinds import view_of
from xbench.report.page.model import figures
from xbench.runs import run_folder
from xbench.runs.frames import RestartFrame, write_frame
from xbench.runs.run_folder import keep

pytestmark = pytest.mark.usefixtures("hangs_up")

STOPS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
BATCH_NORM = "batch normalisation takes its statistics over a worker's own samples"


STOPPED = [
    StepTrained(t=9.0, step=6, loss=1.0),
    StepTrained(t=10.5, step=7, loss=1.0),
    CheckpointKept(t=11.25, steps=7, began_s=10.5),
    RankEnded(t=11.25, how="stopped", steps=7),
]
STARTED = [
    RankStarted(t=15.0, rank=0, pid=1, started_s=13.0),
    GroupJoined(t=15.5),
    ModelBuilt(t=16.5),
    CheckpointLoaded(t=16.75, steps=7, skipped=[]),
    RankReady(t=17.0),
    StepTrained(t=20.0, step=8, loss=1.0),
    StepTrained(t=21.0, step=9, loss=1.0),
    StepTrained(t=23.0, step=10, loss=1.0),
    StepTrained(t=24.0, step=11, loss=1.0),
]


def test_the_parts_of_a_restart() -> None:
    found = times_of(STOPPED, STARTED, asked_s=10.0, gone_s=12.0, from_workers=1, to_workers=2)
    assert found.model_dump() == {
        "from_workers": 1, "to_workers": 2, "steps": 7, "last_step_s": 0.5, "checkpoint_s": 0.75, "teardown_s": 0.75,
        "start_s": 1.0, "imports_s": 2.0, "join_s": 0.5, "build_s": 1.0, "load_s": 0.5, "first_step_s": 3.0,
        "step_s": 1.0,
    }  # fmt: skip
    assert found.launch_s == 5.0
    assert found.total_s == 10.0 == STARTED[5].t - 10.0
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


def test_golden_markdown() -> None:
    golden("restart.md", markdown.render(made.restart(held=False, depends=(BATCH_NORM,))))


def test_one_case_a_part_and_one_for_the_loss_curve() -> None:
    for held, status in ((True, "passed"), (False, "failed")):
        *parts, last = junit.cases(made.restart(held=held))
        assert [case.name for case in parts] == [
            "last step", "checkpoint", "tear-down", "launch", "first step", "total", "lost",
        ]  # fmt: skip
        assert {case.status for case in parts} == {"passed"}
        assert (last.name, last.status) == ("loss curve", status)


def test_the_page_draws_the_record_s_numbers() -> None:
    record = made.restart()
    page = view_of(record).page()
    found = {figure.key: figure for figure in figures(page)}
    assert list(found) == ["restart-parts", "losses"]
    lengths = [sum(trace["x"][place] for trace in found["restart-parts"].traces) for place in range(4)]
    assert lengths == pytest.approx([one.total_s for one in record.restarts], rel=1e-3)
    assert [trace["y"] for trace in found["losses"].traces] == [record.uncut_losses, record.losses]
    assert page.failures == []
    assert view_of(made.restart(held=False)).page().failures != []


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
    with pytest.raises(SpecError, match="'soon' is not a number of seconds"):
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


class Studied:
    """Takes the place of a study of real jobs: it times two restarts, and then does what a test says."""

    then: Callable[[], Restart]
    timed = 2

    def __init__(self, *given: Any) -> None:
        self.folder, self.times = given[3], given[4]

    def frame(self) -> RestartFrame:
        return made.frame()

    def measured(self) -> Restart:
        write_frame(self.frame(), self.folder)
        self.times += made.four()[: self.timed]
        return type(self).then()


@pytest.fixture
def studied(monkeypatch: pytest.MonkeyPatch) -> type[Studied]:
    class Here(Studied):
        pass

    monkeypatch.setattr(restarting, "_checked", lambda request: (None, None))
    monkeypatch.setattr(restarting, "_Study", Here)
    return Here


def sent(number: signal.Signals) -> Restart:
    os.kill(os.getpid(), number)
    raise AssertionError("went on")


def broken(_: object = None) -> Restart:
    raise RunError("resnet18: rank 1 was killed")


@pytest.mark.parametrize(
    ("end", "kind", "why"),
    [
        *((partial(sent, number), Interrupted, "interrupted") for number in STOPS),
        (broken, RunError, "resnet18: rank 1 was killed"),
    ],
)
def test_what_ends_a_study_early_keeps_the_restarts_that_were_timed(
    studied: type[Studied], tmp_path: Path, end: Callable[[], Restart], kind: type[Exception], why: str
) -> None:
    studied.then = staticmethod(end)
    record, path, error = measure(RestartRequest("resnet18"), lambda said: None, tmp_path)
    assert isinstance(error, kind)
    assert load(path) == record == made.cut_short(why)


def test_where_nothing_was_timed_the_error_is_all(studied: type[Studied], tmp_path: Path) -> None:
    studied.then, studied.timed = staticmethod(broken), 0
    with pytest.raises(RunError, match="rank 1 was killed"):
        measure(RestartRequest("resnet18"), lambda said: None, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_study_is_rebuilt(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="there is no result file"):
        load(tmp_path)
    write_frame(made.frame(), tmp_path)
    with pytest.raises(RecordError, match="has no restart that was timed"):
        load(tmp_path)
    first, second, third, _ = (one.model_dump_json() for one in made.four())
    (tmp_path / "restarts.jsonl").write_text(f"{first}\n{second}\n{third[:50]}")
    why = "rebuilt from restarts.jsonl: the run was killed, or has not ended yet"
    assert load(tmp_path) == made.cut_short(why)
    (tmp_path / "restarts.jsonl").write_text(f"{first}\n{third[:50]}\n{second}\n")
    rebuilt = load(tmp_path)
    assert isinstance(rebuilt, Restart)
    assert len(rebuilt.restarts) == 2
    assert rebuilt.warnings == ["restarts.jsonl has a broken line, which was left out"]


def test_what_ended_early_in_every_format() -> None:
    record = made.cut_short()
    assert loads(dump(record)) == record
    told = "INCOMPLETE: interrupted. What follows is what had been measured by then."
    assert terminal.render(record, width=120).splitlines()[0] == told
    assert f"**{told}**" in markdown.render(record)
    page = view_of(record).page()
    assert page.incomplete == told
    assert [figure.key for figure in figures(page)] == ["restart-parts"]
    assert (page.failures, view_of(record).tables()["losses"]) == ([], [])
    last = list(junit.cases(record))[-1]
    assert (last.name, last.status, last.message) == ("the whole run", "error", "INCOMPLETE: interrupted")


@pytest.mark.parametrize("number", STOPS)
def test_a_stop_while_the_record_is_saved_comes_after_it(
    studied: type[Studied], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals
) -> None:
    def slowly(record: Restart, path: Path) -> Path:
        os.kill(os.getpid(), number)
        return keep(record, path)

    studied.then = staticmethod(made.restart)
    monkeypatch.setattr(run_folder, "keep", slowly)
    record, path, interrupted = measure(RestartRequest("resnet18"), lambda said: None, tmp_path)
    assert isinstance(interrupted, Interrupted)
    assert load(path) == record == made.restart()
