"""The backend `sockets`, which was removed: nothing chooses it, and the records that hold it are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import xbench
from xbench import cli
from xbench.config import RunConfig
from xbench.errors import SpecError
from xbench.fabrics import parse_fabric
from xbench.records import AnyRecord, Comparison, Profile, loads
from xbench.report.formats.terminal import render
from xbench.report.kinds import view_of
from xbench.report.snippets import attach_snippet
from xbench.runs.prepare import prepare
from xbench.schedules import parse_modes
from xbench.spec import WorkloadSpec

GOLDEN = Path(__file__).parents[1] / "golden"
REFUSAL = "--backend sockets was removed: leave --backend out, and Gloo carries the gradients of CPUs"


def over_sockets(kind: str) -> AnyRecord:
    """A golden record as a run over sockets wrote it."""
    data = json.loads((GOLDEN / f"{kind}-v1.json").read_text(encoding="utf-8"))
    data["spec"]["collectives"] = "sockets"
    data["fabric"]["backend"] = "sockets"
    data["cost_model"]["backend"] = "sockets"
    return loads(json.dumps(data), "record.json")


@pytest.mark.parametrize("command", ["compare", "profile", "tune"])
def test_every_command_refuses_it_in_one_sentence(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main([command, "--backend", "sockets", "--output", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: {REFUSAL}\n"
    assert not list(tmp_path.iterdir())


def test_a_request_refuses_it() -> None:
    config = RunConfig(
        workloads=[WorkloadSpec(name="transformer-tiny")],
        fabric=parse_fabric("local:ranks=2"),
        modes=parse_modes("ddp"),
        collectives="sockets",
    )
    with pytest.raises(SpecError, match=REFUSAL):
        prepare(config)


def test_its_process_group_is_gone() -> None:
    assert not hasattr(xbench, "new_socket_group")


def test_torch_is_still_accepted_where_it_is_the_only_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", "--backend", "torch", "--no-such-option"]) == 2
    assert "has no option '--no-such-option'" in capsys.readouterr().err


def test_a_wrong_backend_is_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["compare", "transformer-tiny", "--backend", "socket", "--output", str(tmp_path)]) == 2
    assert "'torch', 'horovod'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["profile", "comparison"])
def test_records_that_hold_it_load_and_render(kind: str) -> None:
    record = over_sockets(kind)
    text = render(record)
    assert isinstance(record, (Profile, Comparison))
    assert record.spec.collectives == "sockets"
    assert "sockets" in text


def test_what_such_a_record_advises_can_be_typed_and_pasted() -> None:
    record = over_sockets("comparison")
    assert isinstance(record, Comparison)
    assert not any("sockets" in (line.command or "") for line in view_of(record).advice())
    plan = next(iter(record.jobs[0].plans.values()))
    assert "process_group" not in attach_snippet(plan)
