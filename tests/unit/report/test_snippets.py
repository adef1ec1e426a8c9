from __future__ import annotations

import ast
import contextlib
import types
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.planning.plans import bucket_caps_mib
from xbench.records import Plan
from xbench.report.snippets import PLAIN_DDP, attach_snippet, ddp_snippet, is_plain_ddp


def plan_of(mode: str, buckets: list[list[str]], nbytes: list[int]) -> Plan:
    return Plan(mode=mode, buckets=buckets, bucket_bytes=nbytes, predicted_step_s=0.5, predicted_exposed_s=0.1)


TWO = plan_of("optimal", [["fc.bias", "fc.weight"], ["conv.weight"]], [3 * 2**20, 2**20 + 4])


def test_ddps_argument() -> None:
    assert ddp_snippet(TWO, bucket_caps_mib(TWO)) == (
        "# optimal: 2 buckets, predicted 500 ms a step (simulated); DDP takes them from its second step on\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "\n"
        "model = DistributedDataParallel(\n"
        "    model,\n"
        "    bucket_cap_mb_list=[3.0, 1.0000038146972656],\n"
        ")\n"
    )


LINE = "xbench.tune_host()  # as in the measurement: keeps freed memory, raises Gloo's threads where it may"


def test_where_ranks_were_tuned_so_is_the_process_that_it_is_pasted_into() -> None:
    in_ddp = ddp_snippet(TWO, bucket_caps_mib(TWO), tuned=True).splitlines()
    assert in_ddp[1] == "import xbench"
    assert in_ddp[-2:] == [")", LINE]  # Gloo's threads begin with the constructor's collectives
    attached = attach_snippet(TWO, tuned=True).splitlines()
    assert attached[attached.index(LINE) + 1].startswith("with xbench.attach(")


@given(st.lists(st.integers(1, 2**40), min_size=1, max_size=20))
def test_ddp_makes_the_plans_bytes_of_what_is_printed(nbytes: list[int]) -> None:
    plan = plan_of("ddp-tuned", [[f"w{place}"] for place in range(len(nbytes))], nbytes)
    call = ast.parse(ddp_snippet(plan, bucket_caps_mib(plan))).body[-1].value  # type: ignore[attr-defined]
    (caps,) = (ast.literal_eval(keyword.value) for keyword in call.keywords)
    assert [int(cap * 1024 * 1024) for cap in caps] == nbytes


def test_auto_that_took_ddp_itself_is_handed_over_as_ddp_as_it_comes() -> None:
    auto = plan_of("auto", TWO.buckets, TWO.bucket_bytes)
    itself = auto.model_copy(update={"carrier": "ddp"})
    assert attach_snippet(itself) == attach_snippet(itself, "/home/me/record.json", tuned=True) == PLAIN_DDP
    assert "bucket" not in PLAIN_DDP
    assert [is_plain_ddp(plan) for plan in (itself, auto, TWO, plan_of("ddp", [["w"]], [4]))] == [True, *[False] * 3]


def test_attach_with_the_buckets_written_out() -> None:
    assert attach_snippet(TWO) == (
        "# optimal: 2 buckets, predicted 500 ms a step (simulated)\n"
        "import xbench\n"
        "\n"
        "buckets = [\n"
        "    ['fc.bias', 'fc.weight'],\n"
        "    ['conv.weight'],\n"
        "]\n"
        'with xbench.attach(model, optimizer, schedule="optimal", plan=buckets, wait="step") as handle:\n'
        "    for inputs, targets in batches:\n"
        "        optimizer.zero_grad()\n"
        "        loss = criterion(handle.model(inputs), targets)\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
    )


@pytest.mark.parametrize(
    ("mode", "record", "given"),
    [
        ("optimal", "/tmp/it's.json", {"plan": "/tmp/it's.json", "wait": "step"}),
        ("ddp-tuned", "kept.json", {"plan": "kept.json"}),
        ("ddp", "kept.json", {}),
        ("ddp", None, {}),
    ],
)
def test_what_attach_is_given(mode: str, record: str | None, given: dict[str, Any], monkeypatch) -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    @contextlib.contextmanager
    def attach(*arguments: Any, **named: Any) -> Iterator[types.SimpleNamespace]:
        calls.append((arguments, named))
        yield types.SimpleNamespace()

    monkeypatch.setattr("xbench.attach", attach, raising=False)
    plan = plan_of(mode, [["w"]], [4])
    exec(attach_snippet(plan, record), {"model": "model", "optimizer": "optimizer", "batches": []})
    assert calls == [(("model", "optimizer"), {"schedule": mode, **given})]
