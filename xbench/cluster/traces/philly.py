"""Microsoft's Philly clusters, 2017: 82,247 jobs, as the Pollux artifact reduced them.

Source: github.com/petuum/adaptdl, branch osdi21-artifact, simulator/traces/philly.csv, derived from
github.com/msr-fiddle/philly-traces (Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters, USENIX ATC 2019).

| column | meaning |
| --- | --- |
| timestamp | submission, local time without a zone: the end of summer time is an hour too early |
| duration | seconds that it ran |
| num_gpus | GPUs that it had |
| gpu_time | duration times num_gpus, checked |
| cluster | virtual cluster, six hexadecimal digits |

Jobs have no names in the file. They are named by cluster and row: '6214e9-3' is row 3. Speeds on other numbers of GPUs
are unknown, so jobs are rigid. Arrivals count from the first of the chosen jobs.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from xbench.cluster.jobs import Job, RigidSpeed
from xbench.cluster.traces.reading import above_zero, number, read_table, whole
from xbench.cluster.traces.trace import Rows, RowsPolicy, Trace
from xbench.errors import unknown

COLUMNS = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")


def load_philly(path: Path, cluster: str | None = None, rows: RowsPolicy = "refuse") -> Trace:
    """The trace in `philly.csv` or `philly.csv.gz`; `cluster`: one virtual cluster alone.

    Raises SpecError for a file that cannot be read, an unknown cluster, and bad rows (see `Rows`).
    """
    table = read_table(path, COLUMNS, ())
    collected = Rows("philly" if cluster is None else f"philly:{cluster}", rows)
    indexes = [table.column[column] for column in COLUMNS]
    if cluster is not None:
        index = table.column["cluster"]
        known = {cells[index] for _, cells in table.numbered() if len(cells) == table.width}
        if cluster not in known:
            raise unknown("cluster", cluster, sorted(known))
    jobs: list[tuple[str, datetime, int, float, str]] = []
    for row, cells in table.numbered():
        try:
            table.check_width(cells)
            stamp, duration, gpus, gpu_time, name = (cells[index] for index in indexes)
            if cluster is not None and name != cluster:
                continue
            requested = whole(gpus, "num_gpus")
            if requested < 1:
                raise ValueError(f"num_gpus {gpus!r} is less than one")
            work_s = above_zero(duration, "duration")
            if abs(number(gpu_time, "gpu_time") - work_s * requested) > 1.0:
                raise ValueError(f"gpu_time {gpu_time!r} is not duration {duration!r} times num_gpus {gpus!r}")
            jobs.append((f"{name}-{row}", _timestamp(stamp), requested, work_s, name))
        except ValueError as problem:
            collected.reject(table.file, row, str(problem))
    began = min((when for _, when, *_ in jobs), default=datetime.min)
    speeds = {requested: RigidSpeed(requested) for requested in {requested for _, _, requested, _, _ in jobs}}
    facts = {name: {"cluster": name} for *_, name in jobs}
    return collected.trace(
        Job(job, (when - began).total_seconds(), requested, work_s, speeds[requested], facts=facts[name])
        for job, when, requested, work_s, name in jobs
    )


def _timestamp(stamp: str) -> datetime:
    try:
        when = datetime.fromisoformat(stamp)
    except ValueError:
        raise ValueError(f"timestamp {stamp!r} is not a date and time") from None
    if when.tzinfo is not None:
        raise ValueError(f"timestamp {stamp!r} has a time zone, and the others have none")
    return when
