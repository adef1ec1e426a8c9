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
from xbench.records import Plan, Unit
from xbench.report.snippets import PLAIN_DDP, attach_snippet, ddp_snippet, is_plain_ddp, units_snippet
from xbench.spec import WorkloadSpec


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


def test_units_are_handed_over_with_the_tuning_of_the_ranks() -> None:
    units = [Unit(name="layer1, layer2", parameters=["layer1.w", "layer2.w"]), Unit(name="", parameters=["w"])]
    assert LINE not in units_snippet("auto:shard", units, "2 units", sums=False)
    lines = units_snippet("auto:shard", units, "2 units", sums=False, tuned=True).splitlines()
    assert lines[-2].startswith("torch.distributed.barrier()")  # Gloo's threads begin with the first collective
    assert lines[-1] == LINE


def loop_of(**options: Any) -> str:
    """The loop of a snippet, without what stands before it."""
    spec = WorkloadSpec(name="resnet18", **options)
    text = attach_snippet(plan_of("wfbp", [["w"]], [4]), workload=spec, device="cuda")
    return text[text.index("as handle:\n") + len("as handle:\n") :]


def test_the_loop_has_the_measured_step() -> None:
    assert loop_of(accumulate=4, amp="fp16", clip=0.5) == (
        "    for number, (inputs, targets) in enumerate(batches, start=1):\n"
        "        sends = number % 4 == 0\n"
        "        with contextlib.nullcontext() if sends else handle.no_sync():\n"
        '            with torch.autocast("cuda", dtype=torch.float16):\n'
        "                loss = criterion(handle.model(inputs), targets) / 4\n"
        "            scaler.scale(loss).backward()\n"
        "        if sends:\n"
        "            handle.synchronize()  # gradients have arrived before anything reads them\n"
        "            scaler.unscale_(optimizer)\n"
        "            torch.nn.utils.clip_grad_norm_(handle.model.parameters(), 0.5)\n"
        "            scaler.step(optimizer)\n"
        "            scaler.update()\n"
        "            optimizer.zero_grad()\n"
    )


@pytest.mark.parametrize("amp", [None, "bf16", "fp16"])
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_gradients_are_read_only_after_they_have_arrived(amp: str | None, clip: float | None, accumulate: int) -> None:
    loop = loop_of(amp=amp, clip=clip, accumulate=accumulate)
    reads = [place for name in ("unscale_", "clip_grad", "scaler.step") if (place := loop.find(name)) >= 0]
    assert all(loop.index("handle.synchronize()") < place for place in reads)
    assert bool(reads) == (clip is not None or amp == "fp16")
    assert loop.count("backward()") == loop.count(".step(") == 1
    ast.parse(f"with attach as handle:\n{loop}")
