"""The error band of a scaling is given where it was measured, and one sentence says that it is unknown beyond."""

from __future__ import annotations

import pytest
import sample_predictions as predicted

from xbench.records import ErrorBand
from xbench.report import FORMATS
from xbench.report.kinds import view_of
from xbench.report.kinds.scaling import band_line

CHECKED = (
    "Error band: on up to 8 workers a measured step would take 0.91 to 1.11 times what is shown, if predictions are "
    "off by up to 10.0 %: the largest error of this record's own predictions."
)
UNKNOWN = "how far off predictions for more than 8 workers are is not known"


def test_the_band_ends_with_the_workers_that_were_measured() -> None:
    assert band_line(predicted.scaling()) == f"{CHECKED} Beyond there is none: {UNKNOWN}."
    rows = [row for row in view_of(predicted.scaling()).tables()["points"] if row["mode"] == "ddp"]
    assert [row["workers"] for row in rows if row["step_low_s"] is not None] == [2, 8]
    assert [row["workers"] for row in rows if row["step_high_s"] is None] == [64, 512, 2048]


def test_no_band_at_all_beyond_what_was_measured() -> None:
    record = predicted.scaling()
    far = record.model_copy(update={"points": [point for point in record.points if point.workers > 8]})
    assert band_line(far) == f"There is no error band: {UNKNOWN}."


def test_a_band_that_was_given_holds_for_all_sizes() -> None:
    record = predicted.scaling()
    points = [point.model_copy(update={"step_band_s": (0.9, 1.1)}) for point in record.points]
    given = ErrorBand(share=0.1, source="given with --error-band")
    assert band_line(record.model_copy(update={"points": points, "error_band": given})) == (
        "Error band: a measured step would take 0.91 to 1.11 times what is shown, if predictions are off by up to "
        "10.0 %: given with --error-band."
    )


@pytest.mark.parametrize("name", ["terminal", "markdown", "html"])
def test_every_format_says_where_it_ends(name: str) -> None:
    assert UNKNOWN in " ".join(FORMATS.load(name)(predicted.scaling()).split())
