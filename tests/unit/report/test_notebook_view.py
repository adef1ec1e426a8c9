"""A notebook shows a record's answer and one short table, as text only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import sample_predictions as predicted
import sample_records as made
from test_html_page import HOSTILE, MADE, Reader

from xbench.records import load

RESULTS = Path(__file__).parents[3] / "results"


@pytest.mark.parametrize("kind", MADE)
def test_it_is_well_formed_and_holds_only_text_and_a_table(kind: str) -> None:
    text = MADE[kind]()._repr_html_()
    found = Reader(text)
    assert (found.wrong, found.open, found.links) == ([], [], [])
    tags = {tag for tag, _ in found.elements}
    assert tags <= {"div", "p", "b", "br", "table", "thead", "tbody", "tr", "th", "td"}
    assert "table" in tags
    assert {name for _, given in found.elements for name in given} <= {"class", "style"}
    assert len(text) < 16_000


def test_it_shows_the_answer_and_the_modes() -> None:
    record = load(RESULTS / "resnet18-rivals-1gbit.json")
    found = Reader(record._repr_html_())
    assert found.text[:2] == [
        "resnet18 on shaped:hosts=2,rate=1gbit",
        "2026-11-22 04:54 UTC · vm · reference ddp · real",
    ]
    assert found.text[2].startswith("dear is fastest: 21.2 % less time per sample than ddp")
    text = " ".join(found.text)
    for cells in ("dear 25.9 ms 25.9 ms – 26.0 ms 0.788 [0.761, 0.815] faster 4 real", "ddp 32.9 ms"):
        assert cells in text


def test_a_record_that_failed_in_part_says_so() -> None:
    text = " ".join(Reader(made.troubled()._repr_html_()).text)
    assert "INCOMPLETE: " in text
    assert "single FAILED: rank 1 on host 1 died: killed by SIGKILL" in text


def test_a_long_table_says_how_many_rows_it_leaves_out() -> None:
    record = predicted.scaling()
    assert len(record.points) == 20
    assert "more rows" not in record._repr_html_()
    text = record.model_copy(update={"points": [*record.points, *record.points[:4]]})._repr_html_()
    assert len(re.findall("<tr>", text)) == 21
    assert "<p>4 more rows are in the record.</p>" in text


def test_foreign_text_is_text() -> None:
    record = made.comparison()
    results = {**record.modes, HOSTILE: made.mode_result(HOSTILE, 0.5, (0.9, 0.8, 0.95), "faster", buckets=2)}
    text = record.model_copy(update={"modes": results})._repr_html_()
    assert "&lt;/script&gt;" in text
    assert "<script" not in text
