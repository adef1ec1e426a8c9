"""`xbench regress`: what it refuses before anything is launched, and how orders are carried out."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from outcome import Refused
from test_refusals import FILES

from xbench import cli
from xbench.commands import regress
from xbench.records import Regression, load
from xbench.regress import checkout
from xbench.regress.protocol import VERSION
from xbench.report.kinds.regression import LIMIT_BYTES


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a suite, in which nothing may be launched."""

    def never(*_: object) -> None:
        raise AssertionError("something was launched")

    monkeypatch.setattr(checkout, "Running", never)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "xbench.toml").write_text(FILES["xbench.toml"])
    return tmp_path


def test_what_the_machine_does_not_have_is_refused_first(place: Path, refused: Refused) -> None:
    subprocess.run(["git", "init", "--quiet", str(place)], check=True)
    assert "--base: there is no revision 'v9'" in refused("regress", "check", "--base", "v9")
    other = Path(__file__).parents[2] / "golden" / "comparison-v1.json"
    assert "is a comparison record and no baseline" in refused("regress", "check", "--baseline", other)
    (place / "results").write_text("a file")
    assert "the baseline: " in refused("regress", "baseline")


def test_other_revisions_can_ask_which_protocol_is_spoken(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["regress", "launch", "--protocol"]) == 0
    assert json.loads(capsys.readouterr().out) == {"protocol": VERSION}


def test_what_an_order_cannot_do_is_in_its_answer(place: Path) -> None:
    order = {"kind": "look", "workload": "resnet18", "modes": ["optimal"], "fabric": "local:ranks=2", "of later": 1}
    (place / "order.json").write_text(json.dumps(order))
    assert cli.main(["regress", "launch", "order.json", "answer.json"]) == 0
    answer = json.loads((place / "answer.json").read_text())
    assert answer["error"].startswith("mode 'optimal' is planned from a measured link, and the check names no record")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"workload": "resnet19"}, "resnet19"),
        ({"modes": ["crossover"]}, "mode 'crossover' is of two jobs, and regress times one"),
        ({"fabric": "shapd"}, "unknown fabric 'shapd'"),
        ({"plan_from": "nowhere.json"}, "there is no result file"),
        ({"kind": "time"}, "an order to time carries what the look before it has resolved"),
    ],
)
def test_each_in_one_sentence(changed: dict[str, object], told: str, place: Path) -> None:
    order = {"kind": "look", "workload": "resnet18", "modes": ["ddp"], "fabric": "local:ranks=2", **changed}
    (place / "order.json").write_text(json.dumps(order))
    assert cli.main(["regress", "launch", "order.json", "answer.json"]) == 0
    assert told in json.loads((place / "answer.json").read_text())["error"]


def checked() -> Regression:
    record = load(Path(__file__).parents[2] / "golden" / "regression-v1.json")
    assert isinstance(record, Regression)
    return record


def test_a_summary_that_cannot_be_written_loses_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "nowhere" / "summary.md"))
    regress._tell_github(checked())
    assert "the summary of the step was not written: " in capsys.readouterr().err


def test_a_summary_leaves_room_for_what_the_step_has_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("x" * (LIMIT_BYTES - 100))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    regress._tell_github(checked())
    assert LIMIT_BYTES - 100 <= summary.stat().st_size <= LIMIT_BYTES
