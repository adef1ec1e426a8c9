"""A run from its request to the ranks: how many launches it has, and what is said before them."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from samples_of_runs import LOCAL, A, record_of, run_of

from xbench.config import RunConfig
from xbench.runs import execute
from xbench.runs.execute import ModeRun
from xbench.runs.run_folder import Kept
from xbench.spec import Effort, FabricSpec


@pytest.mark.parametrize(("fabric", "launches"), [(LOCAL, 4), (FabricSpec(name="cluster", hosts=2), 1)], ids=str)
def test_given_ranks_have_one_launch_and_the_record_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fabric: FabricSpec, launches: int
) -> None:
    run = run_of("ddp", fabric=fabric, effort=Effort(launches=4))
    found = SimpleNamespace(workloads=[SimpleNamespace(record=record_of(A))], warnings=[])
    ran: list[ModeRun] = []

    def executed(running: ModeRun) -> Kept[Any]:
        ran.append(running)
        return Kept(None, tmp_path, None)  # type: ignore[arg-type]

    monkeypatch.setattr(execute, "prepare", lambda config: (run, found, ["a note"]))
    monkeypatch.setattr(ModeRun, "execute", executed)
    written = io.StringIO()
    execute.execute(RunConfig(workloads=[A], fabric=fabric, output=tmp_path), Console(file=written))
    (running,) = ran
    assert running.run.effort.launches == running.policy.launches == launches
    assert running.policy.ran(running.run) == running.run
    said = written.getvalue()
    assert "a note" in said
    assert "fabric" not in said  # a run says it when the fabric is open
