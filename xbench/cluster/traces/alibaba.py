"""Alibaba's PAI: tasks of a cluster of 6,500 GPUs, July and August 2020, or a CSV of the same form.

Source: github.com/alibaba/clusterdata, cluster-trace-gpu-v2020, pai_task_table (Weng et al., MLaaS in the Wild, NSDI
2022). A job has one task or several (workers, parameter servers); a task has instances. The published table has no
header and ten columns, in this order:

| column | meaning |
| --- | --- |
| job_name, task_name | |
| inst_num | instances of the task |
| status | Terminated, Failed, Running or Waiting; only Terminated is a success |
| start_time, end_time | seconds, of the task |
| plan_cpu, plan_mem | not used |
| plan_gpu | GPUs of one instance, in percent: 50 is half a GPU |
| gpu_type | a fact of the job |

A table with a header needs job_name, status, start_time, end_time and plan_gpu. A missing inst_num counts as 1, and a
column submit_time, if present, is the arrival.

**Jobs**: all tasks of one job_name that have the requested status and plan a GPU. A job requests the sum of inst_num
times plan_gpu, rounded up to whole GPUs (`facts["gpu_share"]` is the sum itself), from its first task's start to its
last one's end. Without submit_time its start stands for its arrival: the trace does not contain the wait of that time.
The notes count rows of other statuses and rows without GPUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from xbench.cluster.traces import RigidRow, Rows, RowsPolicy, Trace
from xbench.cluster.traces.reading import Table, above_zero, is_archive, number, parse_table, read_archive, read_text
from xbench.errors import unknown

PUBLISHED = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
    "gpu_type",
)  # fmt: skip
NEEDED = ("job_name", "status", "start_time", "end_time", "plan_gpu")
STATUSES = ("Terminated", "Failed", "Running", "Waiting")


@dataclass
class _Tasks:
    """Sums over the tasks of one job. Times in seconds, GPUs as shares."""

    submitted_s: float = math.inf
    started_s: float = math.inf
    ended_s: float = -math.inf
    gpus: float = 0.0
    facts: dict[str, float | str] = field(default_factory=dict)


def load_alibaba(path: Path, status: str = "Terminated", rows: RowsPolicy = "refuse") -> Trace:
    """The trace in `pai_task_table.tar.gz`, its CSV, or one of the same form (see the module).

    Raises SpecError for a file that cannot be read, an unknown status, a missing column, and bad rows (see `Rows`).
    """
    if status not in STATUSES:
        raise unknown("status", status, STATUSES)
    table = _table(path)
    collected = Rows("alibaba", rows)
    jobs: dict[str, _Tasks] = {}
    other_status = without_gpu = 0

    def parse(row: int, cell: dict[str, str]) -> None:
        nonlocal other_status, without_gpu
        if cell["status"] != status:
            other_status += 1
        elif not cell["plan_gpu"] or number(cell["plan_gpu"], "plan_gpu") == 0:
            without_gpu += 1
        else:
            _add(cell, jobs)

    collected.read(table, parse)
    counted = {
        f"rows of a status other than {status}: {other_status}": other_status,
        f"rows without a GPU: {without_gpu}": without_gpu,
        "no column submit_time: a job's start stands for its arrival": "submit_time" not in table.column,
    }
    return collected.rigid(
        (
            RigidRow(
                name, tasks.submitted_s, max(1, math.ceil(tasks.gpus - 1e-9)), tasks.ended_s - tasks.started_s,
                {**tasks.facts, "gpu_share": tasks.gpus},
            )
            for name, tasks in jobs.items()
        ),
        [note for note, count in counted.items() if count],
    )  # fmt: skip


def _table(path: Path) -> Table:
    if is_archive(path):
        name, text = next(iter(read_archive(path).items()))
        file = f"{path.name}/{name}"
    else:
        text, file = read_text(path), str(path)
    first = text.partition("\n")[0]
    published = "job_name" not in first and first.count(",") == len(PUBLISHED) - 1
    return parse_table(text, file, NEEDED, header=PUBLISHED if published else None)


def _add(cell: dict[str, str], jobs: dict[str, _Tasks]) -> None:
    """Add a task to its job."""
    if not cell["job_name"]:
        raise ValueError("job_name is empty")
    started_s = number(cell["start_time"], "start_time")
    ended_s = number(cell["end_time"], "end_time")
    if ended_s <= started_s:
        raise ValueError(f"end_time {cell['end_time']!r} is not after start_time {cell['start_time']!r}")
    submitted_s = number(cell["submit_time"], "submit_time") if "submit_time" in cell else started_s
    if submitted_s > started_s:
        raise ValueError(f"submit_time {cell['submit_time']!r} is after start_time {cell['start_time']!r}")
    instances = above_zero(cell["inst_num"], "inst_num") if cell.get("inst_num") else 1.0
    share = above_zero(cell["plan_gpu"], "plan_gpu") / 100.0
    tasks = jobs.setdefault(cell["job_name"], _Tasks())
    tasks.submitted_s = min(tasks.submitted_s, submitted_s)
    tasks.started_s = min(tasks.started_s, started_s)
    tasks.ended_s = max(tasks.ended_s, ended_s)
    tasks.gpus += instances * share
    if cell.get("gpu_type"):
        tasks.facts["gpu_type"] = cell["gpu_type"]
