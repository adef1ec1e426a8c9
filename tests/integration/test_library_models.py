"""Small models of timm and of transformers on two real ranks: both schedules train the same network."""

from __future__ import annotations

from pathlib import Path

import pytest
from typed_commands import compare

pytestmark = pytest.mark.integration
SHORT = (
    "--fabric",
    "local:ranks=2",
    "--quick",
    "--launches",
    "1",
    "--rounds",
    "1",
    "--modes",
    "ddp,wfbp",
)


@pytest.mark.parametrize(
    ("module", "text", "title", "tensors"),
    [
        ("timm", "timm/test_resnet:image-size=32", "timm/test_resnet", 47),
        ("transformers", "hf/electra:batch-size=1,seq-len=8", "hf/electra", 204),
    ],
)
def test_a_comparison(tmp_path: Path, module: str, text: str, title: str, tensors: int) -> None:
    pytest.importorskip(module, reason=f"{module} is not installed")
    record, _ = compare(text, *SHORT, results=tmp_path / "runs")
    workload = record.jobs[0].workload
    assert (workload.title, workload.tensors) == (title, tensors)
    assert module in record.environment.facts
    for mode in record.modes.values():
        assert mode.parity.ok
