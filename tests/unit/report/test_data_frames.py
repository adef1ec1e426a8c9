"""Data frames of records: equal to the CSV that the same record makes, and refused in one sentence."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pandas
import pytest
import sample_records as made
from pandas.testing import assert_frame_equal

from xbench.errors import UsageError
from xbench.records import load
from xbench.report.formats import csv as csv_report

GOLDEN = Path(__file__).parents[2] / "golden"
RECORDS = sorted(GOLDEN.glob("*-v1.json"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_frame_is_what_pandas_reads_from_the_csv(path: Path) -> None:
    record = load(path)
    texts = csv_report.tables(record)
    assert texts
    for name, text in texts.items():
        frame = record.frame(name)
        again = pandas.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""])
        assert_frame_equal(frame, again.astype({column: frame[column].dtype for column in frame}))
        for column in frame.select_dtypes(exclude=["Int64", "boolean"]):
            assert frame[column].dtype == again[column].dtype, f"{name}.{column}"


def test_columns_have_the_types_of_their_values() -> None:
    record = made.comparison()
    samples = record.model_copy(update={"samples": [one for one in record.samples if one.mode != "single"]})
    types = samples.frame("samples").dtypes
    named = [str(types[name]) for name in ("mode", "ranks", "launch", "step_s", "complete", "outlier")]
    assert named == ["str", "int64", "Int64", "float64", "bool", "boolean"]
    assert str(record.frame("samples").dtypes["launch"]) == "int64"


def test_a_table_that_the_record_does_not_have_is_refused_with_those_it_has() -> None:
    with pytest.raises(UsageError) as refused:
        load(GOLDEN / "live-v1.json").frame("samples")
    assert str(refused.value) == "this live record has no table 'samples': it has jobs, speeds, spans"


def test_a_comparison_without_samples_has_an_empty_frame() -> None:
    assert made.comparison([], samples=[]).frame("samples").empty


def test_without_pandas_the_refusal_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError) as refused:
        made.comparison().frame("modes")
    assert str(refused.value) == "data frames need pandas, which is not installed: python -m pip install pandas"


def test_pandas_is_imported_for_a_frame_and_not_before() -> None:
    code = (
        f"import sys, xbench; record = xbench.load_result({str(RECORDS[0])!r}); record._repr_html_(); "
        "assert 'pandas' not in sys.modules; record.frame('launches'); "
        "assert 'pandas' in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
