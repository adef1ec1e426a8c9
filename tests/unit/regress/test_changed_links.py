"""Launches whose links changed meanwhile: a fake fabric, no ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from xbench.errors import FabricError, RankError, XbenchError
from xbench.fabrics.fabric import LocalFabric
from xbench.launch import launcher as module
from xbench.launch.launcher import launch
from xbench.launch.monitor import Verdict
from xbench.rank.events import BlockTimed
from xbench.rank.journal import Take
from xbench.rank.program import JobPlan
from xbench.regress import worker_command
from xbench.regress.protocol import JobRequest, JobResult
from xbench.schedules import parse_modes
from xbench.spec import Effort, FabricSpec, RunSpec, WorkloadSpec

CHANGED = "the links changed while ranks used them: the link of host 1 went down and came up again"
LOCAL = FabricSpec(name="local", ranks=2)


@pytest.mark.parametrize(
    ("error", "changed", "kind", "told"),
    [
        (None, CHANGED, FabricError, CHANGED),
        (RankError("rank 1 hung"), CHANGED, RankError, "rank 1 hung"),  # stands, and the links are a warning
        (None, None, None, None),
    ],
)
def test_a_launch_whose_links_changed_ends_with_that_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: XbenchError | None, changed: str | None,
    kind: type[XbenchError] | None, told: str | None,
) -> None:  # fmt: skip
    fabric = LocalFabric(LOCAL, "3f9a1c")
    monkeypatch.setattr(fabric, "changed", lambda: changed)
    monkeypatch.setattr(module, "_start_agents", lambda *arguments, **options: ([], []))
    monkeypatch.setattr(module, "_poll", lambda *arguments: Verdict(error, ["noisy"]))
    outcome = launch(fabric, 1, "none", tmp_path / "none", tmp_path, on_event=lambda *event: None, silence_s=1.0)
    assert outcome.warnings == ["noisy", *([changed] if changed else [])]
    assert kind is None or isinstance(outcome.error, kind)
    assert (outcome.error and str(outcome.error)) == told


STAMPS = [0.0, 0.02, 0.04, 0.06, 3.06, 3.08]


@pytest.mark.parametrize(
    ("error", "blocks"), [(None, 1), (RankError("rank 1 on host 0 hung"), 1), (FabricError(CHANGED), 0)]
)
def test_a_launch_of_regress_does_not_count_on_changed_links(
    monkeypatch: pytest.MonkeyPatch, error: XbenchError | None, blocks: int
) -> None:
    def ranks(program: Mapping[str, Any], run: RunSpec, fabric: Any, folder: Path, take: Take) -> XbenchError | None:
        for rank in (0, 1):
            take(0, rank, BlockTimed(mode="ddp", round=0, position=0, warmup=1, stamps=STAMPS))
        return error

    monkeypatch.setattr(worker_command, "_ranks", ranks)
    run = RunSpec(
        kind="comparison", workloads=(WorkloadSpec(name="resnet18", batch_size=4),), modes=parse_modes("ddp"),
        fabric=LOCAL, effort=Effort(),
    )  # fmt: skip
    order = JobRequest(kind="time", workload="resnet18", modes=("ddp",), fabric="local:ranks=2")
    made = worker_command._launched(JobResult(xbench="1", samples_per_step=8), order, run, JobPlan.model_construct())
    assert len(made.blocks) == blocks
    assert made.error == (str(error) if error is not None else None)
    assert made.warnings == [
        "ddp, round 1: step 3 took 3.00 s where a step takes 20.0 ms: a rank, a link or the machine stood still "
        "meanwhile"
    ]
