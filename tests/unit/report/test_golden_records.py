"""The record's file format, one golden file a schema version: what an older xbench wrote must load for ever.

Only the newest version's files may be rewritten (`XBENCH_UPDATE_GOLDEN=1`), and only while it is unreleased.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import sample_predictions as predicted
import sample_records as made

from xbench.errors import SpecError
from xbench.records import SCHEMA_VERSION, AnyRecord, dump, load, loads
from xbench.report import FORMATS

GOLDEN = Path(__file__).parents[2] / "golden"
MADE: dict[str, Callable[[], AnyRecord]] = {
    "comparison": made.comparison,
    "profile": made.profile,
    "scaling": predicted.scaling,
    "validation": predicted.validation,
}


@pytest.mark.parametrize("kind", MADE)
def test_the_newest_version_loads_to_exactly_what_was_written(kind: str) -> None:
    path = GOLDEN / f"{kind}-v{SCHEMA_VERSION}.json"
    if os.environ.get("XBENCH_UPDATE_GOLDEN"):
        path.write_text(dump(MADE[kind]()), encoding="utf-8")
    assert load(path) == MADE[kind]()
    assert dump(load(path)) == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*-v*.json")), ids=lambda path: path.name)
def test_every_version_ever_written_loads(path: Path) -> None:
    assert load(path).schema_version == SCHEMA_VERSION


@pytest.mark.parametrize(
    "make", [made.comparison, made.troubled, made.paired, made.profile, predicted.scaling, predicted.validation]
)
def test_records_survive_the_round_trip(make: Callable[[], AnyRecord]) -> None:
    assert loads(dump(make())) == make()


@pytest.mark.parametrize(
    "make", [made.comparison, made.troubled, made.paired, made.profile, predicted.scaling, predicted.validation]
)
@pytest.mark.parametrize("name", FORMATS.names())
def test_every_format_renders_every_record(name: str, make: Callable[[], AnyRecord]) -> None:
    record = make()
    if record.kind in FORMATS.entry(name).facts.get("kinds", [record.kind]):
        assert "resnet18" in FORMATS.load(name)(record)
    else:
        with pytest.raises(SpecError, match=f"this {record.kind} record"):
            FORMATS.load(name)(record)


def test_the_names_of_a_scaling_that_others_rely_on() -> None:
    scaling = predicted.scaling().model_dump()
    assert (scaling["kind"], scaling["label"]) == ("scaling", "simulated")
    assert {"topology", "workers", "modes", "points", "findings", "error_band"} <= scaling.keys()
    assert {"mode", "workers", "step_s", "samples_per_s", "efficiency", "exposed_s"} <= scaling["points"][0].keys()


def test_the_names_that_others_rely_on() -> None:
    profile = made.profile().model_dump()
    assert profile["kind"] == "profile"
    assert {"workload", "environment", "fabric", "layers", "step", "cost_model", "plans"} <= profile.keys()
    assert {"name", "parameters", "grad_bytes", "forward_s", "backward_s", "ready_s"} <= profile["layers"][0].keys()
    assert {"forward_s", "backward_s", "optimizer_s", "step_s", "uninstrumented_step_s", "overhead_ratio"} <= (
        profile["step"].keys()
    )
    assert {"alpha_s", "beta_s_per_byte", "alpha_ci95", "beta_ci95", "max_relative_residual", "points"} <= (
        profile["cost_model"].keys()
    )
    assert {"buckets", "predicted_step_s"} <= profile["plans"]["optimal"].keys()

    comparison = made.comparison().model_dump()
    assert comparison["kind"] == "comparison"
    assert {"reference", "modes", "bounds", "fabric", "samples", "complete"} <= comparison.keys()
    mode = comparison["modes"]["optimal"]
    assert mode["status"] in ("ok", "failed")
    assert mode["label"] in ("real", "emulated", "simulated")
    assert {"median", "ci95"} == mode["step_s"].keys()
    assert {"seconds_per_sample", "exposed_s", "predicted_step_s", "prediction_error"} <= mode.keys()
    assert {"ok", "max_relative_difference", "bitwise_across_ranks"} <= mode["parity"].keys()
    assert {"value", "ci95", "verdict", "pairs"} == mode["ratio"].keys()
    assert {"compute_s", "communication_s", "overlap_bound_s", "backward_overlap_bound_s"} == comparison[
        "bounds"
    ].keys()
