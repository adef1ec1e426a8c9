"""What `xbench.attach` takes from a plan: buckets, parts, and the schedule that carries them."""

from __future__ import annotations

import ast

import pytest

from xbench.errors import SpecError
from xbench.records import Parts, Plan
from xbench.report.snippets import attach_snippet
from xbench.schedules.attach import ResolvedPlan, carried

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
