"""Every report that shows the prediction of a step too short to predict marks it; no other report does."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
import sample_predictions
import sample_records as made
from rich.console import Console

from xbench.planning.measured import read
from xbench.planning.scenario import Change, replan, what_if
from xbench.records import Comparison, Profile, Scaling
from xbench.report import FORMATS
from xbench.report.planned import show_planned
from xbench.stats.steps import MIN_PREDICTABLE_S, is_predictable, short_step_caution

GOLDEN = Path(__file__).parents[2] / "golden" / "profile-v1.json"
CAUTION = "Predictions of steps below 30 ms are not reliable here."
SHORT_S = 0.0299


def comparison(step_s: float) -> Comparison:
    record = made.comparison()
    first = next(iter(record.modes))
    short = record.modes[first].model_copy(update={"predicted_step_s": step_s})
    return record.model_copy(update={"modes": {**record.modes, first: short}})


def profile(step_s: float) -> Profile:
    record = made.profile()
    first = next(iter(record.plans))
    short = record.plans[first].model_copy(update={"predicted_step_s": step_s})
    return record.model_copy(update={"plans": {**record.plans, first: short}})


def scaling(step_s: float) -> Scaling:
    record = sample_predictions.scaling()
    first, *others = record.points
    return record.model_copy(update={"points": [first.model_copy(update={"step_s": step_s}), *others]})


def planned(step_s: float, *, table: bool) -> str:
    found = replan(what_if(read(GOLDEN), Change()), ["ddp", "optimal"])
    plans = {mode: plan.model_copy(update={"predicted_step_s": step_s}) for mode, plan in found.plans.items()}
    shown = io.StringIO()
    show_planned(replace(found, plans=plans), Console(file=shown, width=100), chosen="optimal", table=table)
    return " ".join(shown.getvalue().split())


def test_the_limit_itself_is_long_enough() -> None:
    assert is_predictable(MIN_PREDICTABLE_S)
    assert not is_predictable(SHORT_S)
    assert short_step_caution([None, MIN_PREDICTABLE_S]) == []
    assert short_step_caution([1.0, SHORT_S]) == [CAUTION]


@pytest.mark.parametrize("record_of", [comparison, profile, scaling])
@pytest.mark.parametrize("name", ["terminal", "markdown", "html"])
def test_every_format_marks_short_predictions_alone(name: str, record_of: object) -> None:
    assert callable(record_of)
    render = FORMATS.load(name)
    assert CAUTION in " ".join(render(record_of(SHORT_S)).split())
    assert CAUTION not in " ".join(render(record_of(MIN_PREDICTABLE_S)).split())


@pytest.mark.parametrize("table", [True, False])
def test_plan_marks_them_with_its_table_and_beside_a_snippet(table: bool) -> None:
    assert CAUTION in planned(SHORT_S, table=table)
    assert CAUTION not in planned(MIN_PREDICTABLE_S, table=table)
