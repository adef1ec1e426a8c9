"""Tidy tables: their columns, that every value of the record is in them, and that CSV and data frames hold the same."""

from __future__ import annotations

import csv
import io
import subprocess
import sys

import pandas
import pytest
import sample_records as made
from pandas.testing import assert_frame_equal
from sample_kinds import EVERY, GOLDEN

from xbench.errors import UsageError
from xbench.records import load
from xbench.report.formats import csv as csv_report
from xbench.report.kinds import view_of


@pytest.mark.parametrize("kind", EVERY)
def test_a_table_is_rectangular_labelled_and_the_same_in_a_csv_and_a_frame(kind: str) -> None:
    record = EVERY[kind]()
    written, texts = view_of(record).tables(), csv_report.tables(record)
    assert next(iter(written.values())), "the main table has rows"
    assert csv_report.render(record) == next(iter(texts.values()))
    for name, text in texts.items():
        rows = written[name]
        assert len({tuple(row) for row in rows}) <= 1
        assert {row["label"] for row in rows} <= {"real", "emulated", "simulated", None}
        again = [{key: "" if value is None else str(value) for key, value in row.items()} for row in rows]
        cells = csv.DictReader(io.StringIO(text))
        assert [{key: value.removeprefix("'") for key, value in row.items()} for row in cells] == again
        frame = record.frame(name)
        read = pandas.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""])
        assert_frame_equal(frame, read.astype({column: frame[column].dtype for column in frame}))
        for column in frame.select_dtypes(exclude=["Int64", "boolean"]):
            assert frame[column].dtype == read[column].dtype, f"{name}.{column}"


def test_a_failed_mode_is_in_samples_and_modes() -> None:
    whole = made.troubled()
    record = whole.model_copy(update={"samples": [sample for sample in whole.samples if sample.mode != "single"]})
    found = view_of(record).tables()
    bare = [row for row in found["samples"] if row["mode"] == "single"]
    assert [(row["status"], row["step_s"], row["launch"]) for row in bare] == [("failed", None, None)]
    assert {row["status"] for row in found["samples"] if row["mode"] == "mgwfbp"} == {"failed"}
    rows = {row["mode"]: row for row in found["modes"]}
    assert rows["single"]["error"] == "rank 1 on host 1 died: killed by SIGKILL"
    for name in ("single", "mgwfbp"):
        row = rows[name]
        assert (row["status"], row["verdict"], row["step_s"], row["ratio"]) == ("failed", "FAILED", None, None)


def test_a_comparison_without_samples_has_an_empty_table() -> None:
    empty = made.comparison([], samples=[])
    assert csv_report.render(empty) == ""
    assert empty.frame("samples").empty


def test_columns_of_a_frame_have_the_types_of_their_values() -> None:
    record = made.comparison()
    samples = record.model_copy(update={"samples": [one for one in record.samples if one.mode != "single"]})
    types = samples.frame("samples").dtypes
    named = [str(types[name]) for name in ("mode", "ranks", "launch", "step_s", "complete", "outlier")]
    assert named == ["str", "int64", "Int64", "float64", "bool", "boolean"]
    assert str(record.frame("samples").dtypes["launch"]) == "int64"


def test_a_frame_that_cannot_be_made_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError) as refused:
        load(GOLDEN / "live-v1.json").frame("samples")
    assert str(refused.value) == "this live record has no table 'samples': it has jobs, speeds, spans"
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError) as refused:
        made.comparison().frame("modes")
    assert str(refused.value) == "data frames need pandas, which is not installed: python -m pip install pandas"


def test_pandas_is_imported_for_a_frame_and_not_before() -> None:
    code = (
        f"import sys, xbench; record = xbench.load_result({str(GOLDEN / 'baseline-v1.json')!r}); "
        "record._repr_html_(); assert 'pandas' not in sys.modules; record.frame('launches'); "
        "assert 'pandas' in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
