"""Made-up requests, probe and comparisons for tests of `xbench validate`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from xbench.config import Matrix, ValidateConfig
from xbench.errors import XbenchError
from xbench.fabrics import parse_fabric
from xbench.planning.plans import Planner
from xbench.planning.step import StepModel
from xbench.records import Comparison, Profile, Validation, ValidationCell, WorkloadRecord, load
from xbench.runs import validate as matrix
from xbench.runs import validation_places as places
from xbench.runs.execute import Result
from xbench.schedules import parse_modes
from xbench.spec import FabricSpec, WorkloadSpec

MODES = parse_modes("compute,ddp,single,wfbp,mgwfbp,optimal,auto")
MIB = 1024 * 1024
NET, TWO = [WorkloadSpec(name="net")], [parse_fabric("local:ranks=2")]
GOLDEN = Path(__file__).parents[2] / "golden"


def found(monkeypatch: pytest.MonkeyPatch, record: WorkloadRecord, device: str = "cpu") -> None:
    """A probe finds this workload whatever is asked for, under the name and the batch size that were. Links work."""

    def probed(specs: Sequence[WorkloadSpec], *_: object) -> SimpleNamespace:
        items = [
            SimpleNamespace(record=record.model_copy(update={"spec": spec, "title": spec.title})) for spec in specs
        ]
        return SimpleNamespace(specs=specs, workloads=items, environment_facts=dict, device=device)

    monkeypatch.setattr(places, "probe", probed)
    monkeypatch.setattr(matrix, "check_unprobed", lambda _: None)


def config_of(workloads: Sequence[WorkloadSpec], fabrics: Sequence[FabricSpec], **fields: Any) -> ValidateConfig:
    fields.setdefault("matrix", Matrix(fabrics))
    return ValidateConfig(**{"workloads": workloads, "modes": MODES} | fields)


def workload(grad_bytes: int) -> WorkloadRecord:
    return WorkloadRecord(
        spec=WorkloadSpec(name="net"), title="net", parameters=1, tensors=1,
        grad_bytes=grad_bytes, batch_size=1, input=""
    )  # fmt: skip


NETS = [WorkloadSpec(name="net", batch_size=size) for size in (2, 4)]


def measured() -> Comparison:
    record, profile = load(GOLDEN / "comparison-v1.json"), load(GOLDEN / "profile-v1.json")
    assert isinstance(record, Comparison)
    assert isinstance(profile, Profile)
    assert profile.step is not None
    plans = Planner(StepModel.of(profile.layers, profile.step), profile.cost_model).plans()
    job = record.jobs[0].model_copy(update={"step": profile.step, "layers": profile.layers, "plans": plans})
    return record.model_copy(update={"jobs": [job], "cost_model": profile.cost_model})


def resumed(cells: list[ValidationCell]) -> Validation:
    golden = load(GOLDEN / "validation-v1.json")
    assert isinstance(golden, Validation)
    return golden.model_copy(update={"cells": cells, "modes": [mode.text for mode in MODES]})


def quiet() -> Console:
    return Console(file=io.StringIO())


class Runs:
    """Stands for `execute`: comparisons of any cell, each with the next error of a list, if there is one left."""

    def __init__(self, folder: Path, errors: Sequence[XbenchError | None] = ()) -> None:
        self.folder, self.errors = folder, list(errors)
        self.asked: list[ValidateConfig] = []

    def __call__(self, request: ValidateConfig, _: object) -> Result:
        self.asked.append(request)
        error = self.errors.pop(0) if self.errors else None
        record = measured()
        (spec,) = request.workloads
        (job,) = record.jobs
        ran = job.workload.model_copy(update={"spec": spec, "batch_size": spec.batch_size})
        fabric = record.fabric.model_copy(update={"spec": str(request.fabric)})
        update = {"jobs": [job.model_copy(update={"workload": ran})], "fabric": fabric, "complete": error is None}
        return Result(record.model_copy(update=update), self.folder / f"run{len(self.asked)}" / "record.json", error)
