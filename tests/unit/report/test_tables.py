"""Tidy tables: what columns they have, that every value of the record is in them, and that pandas' rules hold."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest
import sample_predictions as predicted
import sample_records as made

from xbench.records import AnyRecord, load
from xbench.report.formats import csv as csv_report
from xbench.report.kinds import view_of

GOLDEN = Path(__file__).parents[2] / "golden"

EVERY: dict[str, Callable[[], AnyRecord]] = {
    "comparison": made.comparison,
    "troubled": made.troubled,
    "paired": made.paired,
    "profile": made.profile,
    "scaling": predicted.scaling,
    "validation": predicted.validation,
    "convergence": lambda: load(GOLDEN / "convergence-v1.json"),
    "tuned": lambda: load(GOLDEN / "tuned-v1.json"),
}


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("name", EVERY)
def test_a_table_is_rectangular_and_every_row_is_labelled(name: str) -> None:
    found = view_of(EVERY[name]()).tables()
    assert next(iter(found.values())), "the main table has rows"
    for rows in found.values():
        assert len({tuple(row) for row in rows}) <= 1
        assert {row["label"] for row in rows} <= {"real", "emulated", "simulated"}


@pytest.mark.parametrize("name", EVERY)
def test_csv_reads_back_to_what_was_written(name: str) -> None:
    record = EVERY[name]()
    written = view_of(record).tables()
    texts = csv_report.tables(record)
    assert csv_report.render(record) == next(iter(texts.values()))
    for table, text in texts.items():
        again = read(text)
        assert again == [{key: "" if value is None else str(value) for key, value in row.items()} for row in
                         written[table]]  # fmt: skip


def test_samples_are_the_record_s_blocks() -> None:
    record = made.comparison()
    rows = view_of(record).tables()["samples"]
    assert [(row["mode"], row["launch"], row["round"], row["step_s"], row["outlier"]) for row in rows] == [
        (sample.mode, sample.launch, sample.round, sample.step_s, sample.outlier) for sample in record.samples
    ]
    first = rows[0]
    assert (first["s_per_sample"], first["ranks"], first["workload"]) == (0.3672 / 16, 2, "resnet18")


def test_every_step_has_a_row_and_warm_up_says_so() -> None:
    record = made.comparison()
    rows = view_of(record).tables()["steps"]
    assert sum(row["phase"] == "timed" for row in rows) == sum(len(sample.steps_s) for sample in record.samples)
    assert sum(row["phase"] == "warm-up" for row in rows) == sum(len(sample.warmup_s) for sample in record.samples)
    assert [row["phase"] for row in rows[:3]] == ["warm-up", "warm-up", "timed"]


def test_a_failed_mode_is_in_samples_and_modes() -> None:
    record = made.troubled().model_copy(
        update={"samples": [sample for sample in made.troubled().samples if sample.mode != "single"]}
    )
    found = view_of(record).tables()
    bare = [row for row in found["samples"] if row["mode"] == "single"]
    assert [(row["status"], row["step_s"], row["launch"]) for row in bare] == [("failed", None, None)]
    assert {row["status"] for row in found["samples"] if row["mode"] == "mgwfbp"} == {"failed"}
    rows = {row["mode"]: row for row in found["modes"]}
    assert rows["single"]["error"] == "rank 1 on host 1 died: killed by SIGKILL"
    for name in ("single", "mgwfbp"):
        row = rows[name]
        assert (row["status"], row["verdict"], row["step_s"], row["ratio"]) == ("failed", "FAILED", None, None)


def test_layers_are_in_ready_order() -> None:
    rows = view_of(made.profile()).tables()["layers"]
    assert [row["layer"] for row in rows] == [layer.name for layer in made.profile().layers]
    assert rows[0]["grad_bytes"] == 2_048_000


def test_a_cell_that_could_not_be_measured_has_a_row() -> None:
    rows = [row for row in view_of(predicted.validation()).tables()["points"] if row["status"] == "failed"]
    assert [(row["error"], row["mode"], row["step_s"]) for row in rows] == [
        ("rank 1 on host 1 died: killed by SIGKILL", None, None)
    ]


def test_a_scaling_s_columns_are_those_that_scale_writes() -> None:
    assert csv_report.render(predicted.scaling()).splitlines()[0] == (
        "label,workload,topology,mode,workers,step_s,step_low_s,step_high_s,exposed_s,samples_per_s,efficiency,"
        "buckets,largest_bucket_bytes"
    )


def test_an_empty_comparison_is_an_empty_table() -> None:
    assert csv_report.render(made.comparison([], samples=[])) == ""
