"""Code that is printed to be pasted: whatever a record says, it is the code that was meant."""

from __future__ import annotations

import ast

import pytest
from hostile import document, put, read

from xbench.records import Plan
from xbench.report.advice import what_to_paste
from xbench.report.kinds.tuned import snippet
from xbench.report.snippets import attach_snippet, ddp_snippet, is_schedule, quoted

BREAKS_OUT = [
    'optimal\nimport os; os.system("id")  #',
    'ddp"); import os; os.system("id"); ("',
    "'''\"\"\"\\",
    "a\u2028import os\x0cimport os\r",
    "\\",
    "é 中 😀",
]


def plan(text: str) -> Plan:
    return Plan(
        mode="optimal", buckets=[[text], ["b"]], bucket_bytes=[4, 4], predicted_step_s=1.0, predicted_exposed_s=0.1,
        note=text,
    )  # fmt: skip


def calls(code: str) -> set[str]:
    """Everything that the code calls or imports."""
    tree = ast.parse(code)
    found = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.add(f"import {getattr(node, 'module', None) or node.names[0].name}")
    return found


TRAINS = {"import xbench", "xbench.attach", "optimizer.zero_grad", "criterion", "handle.model", "loss.backward",
          "optimizer.step"}  # fmt: skip


@pytest.mark.parametrize("text", BREAKS_OUT)
def test_names_and_comments_stay_what_they_are(text: str) -> None:
    assert calls(attach_snippet(plan(text), told=text)) == TRAINS
    assert calls(attach_snippet(plan(text), record=text, told=text)) == TRAINS
    ddp = {"DistributedDataParallel", "import torch.nn.parallel"}
    assert calls(ddp_snippet(plan(text), [1.0], told=text)) == ddp
    assert calls(ddp_snippet(plan(text).model_copy(update={"mode": text}), [1.0])) == ddp
    names = next(node.value for node in ast.parse(attach_snippet(plan(text))).body if isinstance(node, ast.Assign))
    assert ast.literal_eval(names) == plan(text).buckets
    assert ast.literal_eval(quoted(plan(text).note or "")) == plan(text).note


@pytest.mark.parametrize("text", BREAKS_OUT)
def test_a_schedule_that_is_none_is_not_pasted(text: str) -> None:
    assert not is_schedule(text)
    data = document("comparison")
    put(data, ("modes", "optimal", "plan", "carrier"), text)
    record = read(data)
    found = what_to_paste(record)
    assert found.code is None
    tuned = read(document("tuned"))
    assert calls(snippet(tuned.model_copy(update={"schedule": text}), "x")) <= TRAINS
