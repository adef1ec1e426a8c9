"""Where the public traces lie beside the repository, and small files in their manner."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[4] / "shared" / "data"
"""../shared/data of the repository; it is not part of it."""


def shared(place: str) -> Path:
    """A public file; the test is skipped, saying so, where it is absent."""
    if not (SHARED / place).exists():
        pytest.skip(f"{SHARED / place} is absent: public traces are not part of the repository")
    return SHARED / place


def write(path: Path, *lines: str) -> Path:
    """A CSV of these lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def pollux_folder(folder: Path) -> Path:
    """One application, yolov3, whose step on w packed GPUs of b samples each takes b + w/10 s, w/10 of it exchange."""
    placements = ["placement,local_bsz,step_time,sync_time", "41,4,99,1"]
    for gpus in (1, 2, 4, 8):
        placement = "44" if gpus == 8 else str(gpus)
        placements += [f"{placement},{local},{local + gpus / 10},{gpus / 10}" for local in (4, 8, 16)]
    write(folder / "yolov3" / "placements.csv", *placements)
    write(
        folder / "yolov3" / "scalability.csv",
        "num_nodes,num_replicas,local_bsz,step_time,sync_time", "4,16,4,5.6,1.6", "6,16,4,99,1",
    )  # fmt: skip
    write(
        folder / "workloads" / "workload-1.csv",
        "name,time,application,num_replicas,batch_size", "yolov3-0,5,yolov3,4,64", "yolov3-1,7,yolov3,2,64",
    )  # fmt: skip
    return folder
