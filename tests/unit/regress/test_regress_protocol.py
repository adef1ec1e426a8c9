"""Orders and answers between revisions: what was written once must mean the same for ever."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from regress_fakes import MACHINE, WORKLOAD

from xbench.regress.protocol import VERSION, Block, Counts, JobRequest, JobResult, Message, PlannedFigures

GOLDEN = Path(__file__).parents[2] / "golden" / "orders"
ORDER = JobRequest(
    kind="time", workload="resnet18", modes=("ddp", "spb"), fabric="local:ranks=2", device="cpu",
    plan_from="/somewhere/record.json", workers=16, resolved={"run": {}}, rounds=2, steps=6, seed=3, slow_step=1.1,
)  # fmt: skip
ANSWER = JobResult(
    xbench="0.1.0", label="real", environment=MACHINE, workload=WORKLOAD, resolved={"run": {}},
    planned={"ddp": PlannedFigures(buckets=3, planned_step_s=0.5, simulated_step_s=0.75)},
    counted={"ddp": Counts(collectives=5, wire_bytes=40, peak_bytes=4096)},
    blocks=[Block(mode="spb", round=1, steps_s=[0.5, 0.25], warmup_s=[1.0], cycle=2)],
    samples_per_step=4, failed={"wfbp": "no memory"}, warnings=["noisy"], launched_s=4.5,
)  # fmt: skip


@pytest.mark.parametrize(("name", "message"), [("order-v1", ORDER), ("answer-v1", ANSWER)])
def test_version_1_is_read_as_it_was_written(name: str, message: Message) -> None:
    path = GOLDEN / f"{name}.json"
    if os.environ.get("XBENCH_UPDATE_GOLDEN"):
        path.write_text(message.model_dump_json(indent=1) + "\n")
    text = path.read_text()
    assert type(message).model_validate_json(text) == message
    assert VERSION == 1, "a new version needs a golden file of its own"
    assert set(json.loads(text)) <= set(type(message).model_fields), "no field may go"
