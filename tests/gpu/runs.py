"""What the measurements share: the device at hand, and the command line on it."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from cores import one_core

from xbench.record_files import RESULTS
from xbench.records import Comparison, load

ROOT = Path(__file__).parents[2]
DEVICE = os.environ.get("XBENCH_GPU_DEVICE") or ("cuda" if torch.cuda.is_available() else "")
DRY = DEVICE == "cpu"
"""Whether this only shows that the code runs."""

Keep = Callable[..., None]
"""Writes one measurement: see the fixture `keep`."""


def compared(device: str, workload: str, fabric: str, modes: str, *more: str, timeout_s: float = 300) -> Comparison:
    """The record of `xbench compare`. Raises AssertionError, with what it said, where it fails."""
    lone = DRY and "ranks=2" not in fabric
    with tempfile.TemporaryDirectory() as folder, one_core() if lone else nullcontext():
        words = ["compare", *workload.split(), "--device", device, "--fabric", fabric, "--modes", modes, *more]
        done = subprocess.run(
            [sys.executable, "-m", "xbench", *words], capture_output=True, text=True,
            timeout=timeout_s, env=os.environ | {RESULTS: folder},
        )  # fmt: skip
        assert done.returncode == 0, f"xbench {' '.join(words)}\n{done.stderr[-4000:]}"
        (path,) = Path(folder).glob("*/record.json")
        record = load(path)
        if keep := os.environ.get("XBENCH_GPU_RECORDS"):  # whole records and what was said, to look into
            kept = Path(keep, path.parent.name)
            kept.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, kept)
            (kept / "said.txt").write_text(f"xbench {' '.join(words)}\n{done.stdout}\n{done.stderr}")
    assert isinstance(record, Comparison)
    return record


def figures(record: Comparison) -> dict[str, dict[str, object]]:
    """By mode: the step, its ratio to the reference, the prediction's error."""
    found: dict[str, dict[str, object]] = {}
    for name, mode in record.modes.items():
        assert mode.status == "ok", (name, mode.error)
        found[name] = {
            "step_s": mode.step_s.model_dump(),
            "predicted_step_s": mode.predicted_step_s,
            "error": mode.prediction_error,
            "ratio": mode.ratio.model_dump() if mode.ratio is not None else None,
            "label": mode.label,
        }
    return found


def ratios(record: Comparison, *modes: str) -> str:
    """Ratios of these modes' steps to the reference's, with their intervals."""
    found = {name: record.modes[name].ratio for name in modes}
    return ", ".join(f"{name} {r.value:.3f} [{r.ci95[0]:.3f}, {r.ci95[1]:.3f}]" for name, r in found.items() if r)


def errors(found: dict[str, dict[str, object]]) -> list[float]:
    """Absolute prediction errors of all modes but the control."""
    return [abs(float(row["error"])) for name, row in found.items() if name != "compute" and row["error"] is not None]  # type: ignore[arg-type]


def middle(values: list[float]) -> float:
    return statistics.median(values)


def write_table(results: Path) -> None:
    """Write README.md: a row for each file of this folder."""
    rows = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    if not rows:
        return
    said = {True: "held", False: "**missed**", None: "-"}
    lines = [
        "# GPU results",
        "",
        "Made by `make gpu`; a row for each file. Compute is real. Collectives are emulated or of one rank, and NCCL's",
        "between GPUs in line 10. No test fails for a goal that was missed.",
        "",
        "| line | what | goal | | finding | date | GPU | torch | file |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in sorted(rows, key=lambda row: (row["line"], row["what"])):
        lines.append(
            f"| {row['line']} | {row['what']} | {row['goal']} | {said[row['held']]} | {row['finding']} | "
            f"{row['created'][:10]} | {row['gpu']} | {row['torch']} | `{row['what']}.json` |"
        )
    (results / "README.md").write_text("\n".join(lines) + "\n")
