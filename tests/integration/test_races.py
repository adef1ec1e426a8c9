"""No schedule reads a gradient before it has arrived: on a link that hides what travels, that would train on NaN."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

RANK = Path(__file__).parent / "ranks" / "races.py"
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.integration
@pytest.mark.parametrize("device", DEVICES)
def test_nobody_reads_what_still_travels(device: str, tmp_path: Path) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    said = subprocess.run(
        [sys.executable, str(RANK), device], env=os.environ | {"STORE": str(tmp_path / "store")},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    lines = said.stdout.splitlines()
    assert len(lines) == 17, said.stdout + said.stderr[-3000:]
    assert all(line.endswith(": same") for line in lines[:-3]), said.stdout
    assert lines[-3:] == [
        "an engine that never waits: caught",
        "a dear that does not wait before a layer: caught",
        "a priority that does not wait before a layer: caught",
    ]
