"""One sample has shown no spread: no format gives it an interval."""

from __future__ import annotations

import pytest
import sample_records as made

from xbench.records import Comparison, Estimate, Ratio
from xbench.report import FORMATS
from xbench.report.answer import ratio_cell, span_cell
from xbench.report.kinds import view_of
from xbench.stats.compare import paired_ratio
from xbench.stats.summary import median_estimate


def one_block() -> Comparison:
    record = made.comparison()
    modes = {
        name: result.model_copy(
            update={
                "blocks": 1,
                "step_s": Estimate(median=0.5, ci95=(0.5, 0.5)),
                "seconds_per_sample": Estimate(median=0.0314, ci95=(0.0314, 0.0314)),
                "ratio": result.ratio and result.ratio.model_copy(update={"pairs": 1, "value": 0.966}),
            }
        )
        for name, result in record.modes.items()
    }
    return record.model_copy(update={"modes": modes})


def test_one_value_and_one_pair_have_no_interval() -> None:
    assert median_estimate([5.04]).interval is None
    assert median_estimate([5.04, 5.06]).interval is not None
    single = paired_ratio([(0, 0, 1.0)], [(0, 0, 2.0)])
    assert (single.pairs, single.interval, single.verdict) == (1, None, "inconclusive")
    two = paired_ratio([(0, 0, 1.0), (0, 1, 1.0)], [(0, 0, 2.0), (0, 1, 2.0)])
    assert (two.pairs, two.interval) == (2, two.ci95)
    assert Ratio(value=0.5, ci95=(0.4, 0.6), verdict="faster").interval == (0.4, 0.6)  # of an older record


def test_what_stands_in_its_place() -> None:
    assert span_cell(Estimate(median=5.04e-3, ci95=(5.04e-3, 5.04e-3))) == "one sample"
    assert span_cell(Estimate(median=5.04e-3, ci95=(5e-3, 5.1e-3))) == "5.00 ms – 5.10 ms"
    assert ratio_cell(one_block().modes["optimal"]) == "0.966 (1 pair)"


@pytest.mark.parametrize("name", ["terminal", "markdown", "html", "junit"])
def test_no_format_shows_an_interval_of_one_sample(name: str) -> None:
    said = FORMATS.load(name)(one_block())
    for between in (" – ", ", ", " to "):
        assert f"31.4 ms{between}31.4 ms" not in said
        assert f"500 ms{between}500 ms" not in said
    assert "one sample" in said
    assert "0.966 (1 pair)" in said


def test_the_cells_of_a_csv_are_empty() -> None:
    rows = view_of(one_block()).tables()["modes"]
    ends = ("step_low_s", "step_high_s", "s_per_sample_low", "s_per_sample_high", "ratio_low", "ratio_high")
    assert [row["mode"] for row in rows if any(row[end] is not None for end in ends)] == []
