"""Modes that another package registers: what needs no ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from xbench.errors import SpecError
from xbench.modes import GROUP, MODES, ModeInfo, Modes, candidate_modes, mode_info, planned_modes

PROFILE = Path(__file__).parents[1] / "golden" / "profile-v1.json"
THEIRS = ModeInfo("as they call it", "in their words", "theirs:Theirs", planner="theirs:plan")


def xbench(env: dict[str, str], *words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "xbench", *words], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_listed_with_its_summary(with_pairs: dict[str, str]) -> None:
    said = xbench(with_pairs, "list", "modes").splitlines()
    (line,) = (line for line in said if line.split()[0] == "pairs")
    assert line.endswith("two neighbours a collective, as soon as both are ready")
    assert said.index(line) < said.index("two jobs that share the devices:")


def test_it_is_planned_without_being_named(with_pairs: dict[str, str]) -> None:
    plans = json.loads(xbench(with_pairs, "plan", str(PROFILE), "--emit", "json"))["plans"]
    assert list(plans).index("pairs") == list(plans).index("dear") - 1
    theirs, wfbp = plans["pairs"], plans["wfbp"]
    assert len(theirs["buckets"]) == -(-len(wfbp["buckets"]) // 2)
    assert theirs["predicted_step_s"] > plans["compute"]["predicted_step_s"]
    others = [plan["predicted_step_s"] for mode, plan in plans.items() if mode != "pairs"]
    assert theirs["predicted_step_s"] not in others


def test_it_is_carried_over_to_other_sizes(with_pairs: dict[str, str]) -> None:
    words = ("plan", str(PROFILE), "--workers", "2,64", "--modes", "wfbp,pairs", "--json", "-")
    points = json.loads(xbench(with_pairs, *words))["points"]
    steps_s = {(point["mode"], point["workers"]): point["step_s"] for point in points}
    assert steps_s["pairs", 64] > steps_s["pairs", 2]
    assert steps_s["pairs", 64] < steps_s["wfbp", 64]


def test_the_list_of_modes_needs_no_torch_for_it(with_pairs: dict[str, str]) -> None:
    code = "import sys; from xbench.modes import MODES; assert 'pairs' in MODES; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env=with_pairs, timeout=60, check=True)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Modes:
    """A table that finds four entry points: a mode's facts, a class, a module that is missing, and a name of ours."""
    assert MODES.names()  # the real table looks for entry points before these are made
    points = [
        EntryPoint("theirs", f"{__name__}:THEIRS", GROUP),
        EntryPoint("plain", "collections:OrderedDict", GROUP),
        EntryPoint("gone", "no_such_module_at_all:Mode", GROUP),
        EntryPoint("ddp", f"{__name__}:THEIRS", GROUP),
    ]
    monkeypatch.setattr("xbench.registry.entry_points", lambda *, group: points if group == GROUP else [])
    return Modes()


def test_the_entry_point_names_the_mode_and_replaces_none_of_ours(registered: Modes) -> None:
    assert registered.names() == [*MODES.names(), "theirs", "plain"]
    assert registered.entry("theirs").name == "theirs"
    assert registered.entry("theirs").planner == "theirs:plan"
    assert registered.entry("ddp") == MODES.entry("ddp")


def test_a_class_is_a_mode_without_a_plan(registered: Modes) -> None:
    from collections import OrderedDict

    plain = registered.entry("plain")
    assert (plain.summary, plain.planner, plain.equivalent_to_ddp) == ("from collections:OrderedDict", None, True)
    assert registered.load("plain") is OrderedDict


def test_one_that_cannot_be_imported_leaves_the_others_alone(registered: Modes) -> None:
    assert "gone" not in registered
    with pytest.raises(SpecError, match="mode 'gone' cannot be imported: ModuleNotFoundError: No module named"):
        registered.entry("gone")


def test_nothing_is_known_of_a_mode_that_only_a_record_has() -> None:
    stranger = mode_info("of another machine")
    assert stranger == ModeInfo("of another machine")
    assert not stranger.paired
    assert stranger.planner is None


def test_a_plan_for_the_next_forward_pass_needs_a_way_to_travel() -> None:
    with pytest.raises(ValueError, match="need halves or parts"):
        ModeInfo("early", planner="theirs:plan", overlap="next_forward")
    with pytest.raises(ValueError, match="need halves or parts"):
        ModeInfo("late", planner="theirs:plan", travels="parts")


def test_facts_name_code_and_modes_that_exist() -> None:
    from xbench.registry import imported

    for info in MODES:
        facts = (info.planner, info.plan_note, info.predictor, info.forecast, info.options, info.cycle, info.obstacle)
        for target in (*facts, info.ranks):
            assert target is None or callable(imported(target)), info.name
        for other in (*info.buckets_of, *filter(None, [info.paced_by, info.base_schedule])):
            assert other in MODES, info.name
        assert bool(info.schedule) != info.paired
        assert info.remedy is None or info.obstacle is not None
    assert candidate_modes() == ("optimal", "ddp", "mgwfbp", "single", "wfbp")
    assert set(candidate_modes()) <= set(planned_modes())
