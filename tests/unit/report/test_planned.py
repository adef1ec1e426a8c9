"""What `xbench plan` recommends and says of it, for plans whose predictions are given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from xbench.planning.measured import read
from xbench.planning.next_forward_search import NextForwardSearch
from xbench.planning.scenario import Change, Planned, Scenario, replan, what_if
from xbench.report.advice import fastest, recommendation
from xbench.report.planned import (
    fastest_in_ddp,
    next_forward_line,
    prediction,
    what_to_paste,
)
from xbench.units import format_seconds

GOLDEN = Path(__file__).parents[2] / "golden" / "profile-v1.json"


def scenario() -> Scenario:
    return what_if(read(GOLDEN), Change())


def with_steps(**steps_s: float) -> Planned:
    """Plans of the golden profile whose predicted steps [s] are these; `_` stands for `-` in a mode."""
    wanted = {mode.replace("_", "-"): step_s for mode, step_s in steps_s.items()}
    found = replan(scenario(), list(wanted))
    plans = {mode: plan.model_copy(update={"predicted_step_s": wanted[mode]}) for mode, plan in found.plans.items()}
    return replace(found, plans=plans)


@pytest.mark.parametrize(
    ("steps_s", "mode"),
    [
        ({"ddp": 1.0, "auto": 0.9, "optimal": 0.9001}, "auto"),
        ({"ddp": 1.0, "auto": 0.9001, "optimal": 0.9}, "optimal"),  # the same change to a script: the faster
        ({"ddp": 1.0, "ddp_tuned": 0.904, "auto": 0.9}, "ddp-tuned"),  # as good, and a smaller change
        ({"ddp": 1.0, "ddp_tuned": 0.906, "auto": 0.9}, "auto"),
        ({"ddp": 0.903, "single": 0.9, "auto": 0.9}, "ddp"),
        ({"single": 0.902, "auto": 0.9, "wfbp": 0.9}, "single"),
        ({"wfbp": 0.9, "auto": 0.902}, "auto"),
        ({"compute": 0.1, "wfbp": 0.9}, "wfbp"),
        ({"compute": 0.1}, None),
    ],
)
def test_of_modes_as_good_the_one_that_changes_least(steps_s: dict[str, float], mode: str | None) -> None:
    assert fastest(with_steps(**steps_s)) == mode


def test_what_to_paste_only_where_it_matters() -> None:
    assert what_to_paste(with_steps(ddp=1.0, auto=0.985)) is None
    assert "Keep ddp as it comes: auto, the fastest" in recommendation(with_steps(ddp=1.0, auto=0.985))
    assert what_to_paste(with_steps(ddp=1.0, ddp_tuned=0.9)) == "--emit ddp prints the argument to paste."
    assert what_to_paste(with_steps(ddp=0.9, auto=1.0)) is None
    assert what_to_paste(with_steps(compute=1.0)) is None
    told = what_to_paste(with_steps(ddp=1.0, auto=0.9))
    assert told is not None
    assert told.startswith(
        "--emit python prints the lines to paste, for xbench.attach; --emit ddp --mode auto the same buckets for"
    )


def test_buckets_that_ddp_cannot_form_are_for_attach_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Planned, "formed_by_ddp", lambda self, mode: False)
    found = with_steps(ddp=1.0, ddp_tuned=1.0, auto=0.5)
    assert what_to_paste(found) == "--emit python prints the lines to paste, for xbench.attach."
    assert fastest_in_ddp(found) == "ddp-tuned"


@pytest.mark.parametrize(
    ("tuned_s", "auto_s", "mode"), [(0.9, 0.8, "auto"), (0.9, 0.897, "ddp-tuned"), (0.8, 0.9, "ddp-tuned")]
)
def test_the_list_for_ddp_is_the_one_that_is_best_in_ddp(
    monkeypatch: pytest.MonkeyPatch, tuned_s: float, auto_s: float, mode: str
) -> None:
    there_s = {"ddp-tuned": tuned_s, "auto": auto_s}
    found = with_steps(ddp_tuned=1.0, auto=0.1)
    monkeypatch.setattr(
        Planned,
        "in_ddp",
        lambda self, name: self.plans[name].model_copy(update={"predicted_step_s": there_s[name]}),
    )
    assert fastest_in_ddp(found) == mode


def test_no_list_where_neither_was_planned() -> None:
    assert fastest_in_ddp(with_steps(ddp=1.0, wfbp=0.5)) is None


def test_a_prediction_says_where_it_runs() -> None:
    found = with_steps(ddp=1.0, ddp_tuned=0.95, auto=0.9)
    assert prediction(found, "auto") == "auto is predicted to take 900 ms a step, ddp 1.00 s (simulated)."
    assert prediction(found, "ddp-tuned") == (
        "ddp-tuned is predicted to take 950 ms a step, ddp 1.00 s, auto 900 ms (simulated)."
    )
    assert prediction(found, "auto", in_ddp=True).endswith(
        " a step, ddp 1.00 s, auto under xbench.attach 900 ms (simulated)."
    )
    assert prediction(found, "auto", in_ddp=True).startswith("DistributedDataParallel with the buckets of auto is ")


def test_what_the_next_forward_pass_could_hide_is_told() -> None:
    found = replan(scenario(), ["ddp"])
    was = found.scenario
    best = NextForwardSearch(was.layers, was.step, was.cost, contention=was.contention).best()
    assert {one.mode for one in best} == {"dear", "priority"}
    line = next_forward_line(found)
    assert line.endswith("(simulated)")
    for one in best:
        assert f"{one.mode} {format_seconds(one.step.step_s)}" in line
