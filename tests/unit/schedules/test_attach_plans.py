"""What `xbench.attach` takes from a plan or a tuned file: buckets, parts, and the schedule that carries them."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest
from torch import nn

import xbench
from xbench.errors import SpecError
from xbench.records import Parts, Plan, Tuned, load, save
from xbench.report.snippets import attach_snippet
from xbench.schedules.attach import ResolvedPlan, carried

GOLDEN = Path(__file__).parents[2] / "golden" / "tuned-v1.json"
PARTS = Parts(nbytes=16, order=[2, 0, 1], credit_bytes=32)
PLAN = Plan(
    mode="auto", buckets=[["b"], ["a"]], bucket_bytes=[32, 8], predicted_step_s=0.5, predicted_exposed_s=0.1,
    parts=PARTS, carrier="priority",
)  # fmt: skip


def test_a_plan_of_auto_brings_the_schedule_that_carries_it() -> None:
    assert carried(PLAN, "auto") == ResolvedPlan(PLAN.buckets, PARTS, "priority")
    assert carried(PLAN.model_copy(update={"carrier": None, "parts": None}), "auto") == ResolvedPlan(
        PLAN.buckets, None, "auto"
    )
    assert carried(PLAN, "wfbp").schedule == "wfbp"  # who asks for another schedule gets it
    assert carried(None, "single") == ResolvedPlan(None, None, "single")
    assert carried([["a"]], "optimal") == ResolvedPlan([["a"]], None, "optimal")


def test_what_is_emitted_is_what_is_attached() -> None:
    snippet = attach_snippet(PLAN)
    given = {
        node.targets[0].id: ast.literal_eval(node.value)  # type: ignore[attr-defined]
        for node in ast.parse(snippet).body
        if isinstance(node, ast.Assign)
    }
    assert carried(given, "priority") == ResolvedPlan(PLAN.buckets, PARTS, "priority")
    assert 'schedule="priority", plan={"buckets": buckets, "parts": parts}) as handle:' in snippet
    assert "schedule=\"auto\", plan='/r.json') as handle:" in attach_snippet(PLAN, "/r.json")


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        ({"parts": None}, "a plan that is a mapping has 'buckets' and 'parts', and this one has ['parts']"),
        (
            {"buckets": [], "order": []},
            "a plan that is a mapping has 'buckets' and 'parts', and this one has ['buckets'",
        ),
        ({"buckets": [["a"]], "parts": {"nbytes": 0, "order": [0]}}, "the plan's parts are none: nbytes: "),
    ],
)
def test_a_mapping_that_is_no_plan_is_refused(plan: dict[str, object], sentence: str) -> None:
    with pytest.raises(SpecError) as caught:
        carried(plan, "priority")
    assert str(caught.value).startswith(sentence)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 1, 1, bias=False)
        self.fc = nn.Linear(2, 2)


@pytest.mark.parametrize("schedule", [None, "auto"])
def test_the_file_says_schedule_and_buckets(schedule: str | None) -> None:
    entry = next(one for one in os.scandir(GOLDEN.parent) if one.name == GOLDEN.name)  # a PathLike that is no Path
    for plan in (GOLDEN, str(GOLDEN), entry, load(GOLDEN)):
        assert not isinstance(plan, (xbench.Profile, xbench.Comparison))
        with xbench.attach(Small(), schedule=schedule, plan=plan) as handle:  # type: ignore[arg-type]
            assert handle.buckets == [["fc.bias", "fc.weight"], ["conv1.weight"]]


def test_a_plan_says_its_schedule_too() -> None:
    plan = Plan(mode="single", buckets=[["fc.bias", "fc.weight", "conv1.weight"]], bucket_bytes=[28],
                predicted_step_s=0, predicted_exposed_s=0)  # fmt: skip
    with xbench.attach(Small(), plan=plan) as handle:
        assert handle.buckets == plan.buckets
        assert not handle.engine.overlap


def test_another_schedule_than_the_file_s_is_refused() -> None:
    with pytest.raises(SpecError, match="the tuned file is for 'auto', and schedule='optimal' was asked for"):
        xbench.attach(Small(), schedule="optimal", plan=GOLDEN)


def test_another_model_is_refused_by_the_names_of_its_parameters(tmp_path: Path) -> None:
    other = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(SpecError, match=r"the plan, made for resnet18, names 'fc\.bias', .* \(3 of its 3 names are"):
        xbench.attach(other, plan=GOLDEN)
    record = load(GOLDEN)
    assert isinstance(record, Tuned)
    tuned = save(record.model_copy(update={"schedule": "ddp-tuned"}), tmp_path / "tuned.json")
    with pytest.raises(SpecError, match=r"the plan, made for resnet18, names 'fc\.bias'"):
        xbench.attach(other, plan=tuned)
    model = Small()
    model.extra = nn.Linear(1, 1)
    with pytest.raises(SpecError, match=r"the plan leaves out parameter 'extra\.weight'"):
        xbench.attach(model, plan=GOLDEN)


def test_a_keyword_that_attach_does_not_have_is_an_error() -> None:
    with pytest.raises(TypeError, match="'waits'"):
        xbench.attach(nn.Linear(2, 2), waits="step")  # type: ignore[call-arg]
