"""A mode that the gate could not prove anything of keeps its time, and every format says why."""

from __future__ import annotations

import json

import pytest
import sample_records as made

from xbench.records import BY_HAND, Comparison, dump, loads
from xbench.report import FORMATS
from xbench.report.answer import parity_cell, trusted
from xbench.report.formats.junit import cases
from xbench.report.kinds import view_of
from xbench.report.sentences import columns_line, failure_line, not_shown_lines

WHY = "a schedule that does not average would pass"


def unproven(modes: tuple[str, ...] = ("ddp", "optimal"), **more: object) -> Comparison:
    record = made.comparison()
    update = {"shown": False, "message": WHY, **more}
    changed = {
        name: mode.model_copy(update={"parity": mode.parity.model_copy(update=update)})
        for name, mode in record.modes.items()
        if name in modes and mode.parity is not None
    }
    return record.model_copy(update={"modes": {**record.modes, **changed}})


def test_the_times_stand() -> None:
    result = unproven().modes["optimal"]
    assert trusted(result)
    assert failure_line(result) is None
    assert parity_cell(result) == "not shown"


def test_one_sentence_a_reason() -> None:
    assert not_shown_lines(unproven()) == [f"Same network: not shown for ddp and optimal: {WHY}."]
    assert not_shown_lines(made.comparison()) == []


@pytest.mark.parametrize("name", ["markdown", "html"])
def test_a_format_for_people_says_so_with_the_reason(name: str) -> None:
    text = " ".join(FORMATS.load(name)(unproven()).split())
    assert "not shown" in text
    assert WHY in text


def test_junit_says_so_in_the_case() -> None:
    told = {case.name: case.message for case in cases(unproven())}
    assert told["optimal"].endswith(f"; same network: not shown ({WHY})")
    assert "; same network: yes" in told["wfbp"]


def test_csv_has_the_words_and_the_reason() -> None:
    rows = {row["mode"]: row for row in view_of(unproven()).tables()["modes"]}
    assert (rows["optimal"]["same_network"], rows["optimal"]["same_network_why"]) == ("not shown", WHY)
    assert rows["wfbp"]["same_network"] == "yes"
    failed = {row["mode"]: row for row in view_of(made.troubled()).tables()["modes"]}
    assert failed["mgwfbp"]["same_network"] == "FAILED"


def test_a_reference_by_hand_is_said() -> None:
    text = columns_line(unproven(reference=BY_HAND, shown=True))
    assert "trains what averaging by hand trains, since DDP cannot train this model" in text


def test_a_record_from_before_says_yes() -> None:
    data = json.loads(dump(made.comparison()))
    for mode in data["modes"].values():
        if mode["parity"] is not None:
            del mode["parity"]["shown"]
    assert loads(json.dumps(data)) == made.comparison()


def test_a_reference_that_fails_is_not_held_against_itself() -> None:
    result = made.comparison().modes["ddp"]
    assert result.parity is not None
    failed = result.model_copy(
        update={"parity": result.parity.model_copy(update={"ok": False, "message": "'weight' differs"})}
    )
    assert failure_line(failed) == (
        "ddp FAILED the correctness gate against its own steps taken again (tolerance 0.0001), so its time is not "
        "shown: 'weight' differs"
    )
