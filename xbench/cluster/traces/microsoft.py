"""Two traces of Microsoft's clusters, `itp` and `philly`. Speeds on other numbers of GPUs are unknown: jobs are rigid.

**itp**: two months of ten ITP clusters' deep-learning jobs (69,351 jobs, 1,632,719.7 GPU hours), one CSV per cluster.
Source: github.com/microsoft/elasticflow-traces, data/raw-traces.tar.gz (2021-03-04 to 2021-05-03; Gu et al.,
ElasticFlow, ASPLOS 2023).

**philly**: Philly clusters, 2017: 82,247 jobs, as the Pollux artifact reduced them. Source: github.com/petuum/adaptdl,
branch osdi21-artifact, simulator/traces/philly.csv, derived from github.com/msr-fiddle/philly-traces (Jeon et al.,
Analysis of Large-Scale Multi-Tenant GPU Clusters, USENIX ATC 2019). Jobs are named by cluster and row: '6214e9-3' is
row 3. Timestamps are local, without a zone: the end of summer time is an hour too early.

Durations and times are seconds. Arrivals count from the first of the chosen jobs.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from xbench.cluster.traces import RigidRow, Rows, RowsPolicy, Trace, reading
from xbench.errors import unknown

ITP_COLUMNS = ("job_id", "submission_time", "duration", "num_gpu")
PHILLY_COLUMNS = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")


def load_itp(path: Path, cluster: str | None = None, rows: RowsPolicy = "refuse") -> Trace:
    """The trace in `raw-traces.tar.gz`, or in one of its CSVs; `cluster`: '03' or 'cluster03' alone.

    Raises SpecError for a file that cannot be read, an unknown cluster, and bad rows (see `Rows`).
    """
    tables = _itp_tables(path)
    if cluster is not None:
        wanted = cluster.removeprefix("cluster").zfill(2)
        if wanted not in tables:
            raise unknown("cluster", cluster, tables)
        tables = {wanted: tables[wanted]}
    collected = Rows("itp" if cluster is None else f"itp:cluster{next(iter(tables))}", rows)
    names: set[str] = set()

    def parse(row: int, cell: dict[str, str]) -> RigidRow:
        job = cell["job_id"]
        if not job or job in names:
            raise ValueError(f"there is already a job {job!r}" if job else "job_id is empty")
        gpus = reading.gpus_of(cell["num_gpu"], "num_gpu")
        submitted_s = reading.number(cell["submission_time"], "submission_time")
        duration_s = reading.above_zero(cell["duration"], "duration")
        names.add(job)
        return RigidRow(job, submitted_s, gpus, duration_s)

    return collected.rigid([job for table in tables.values() for job in collected.read(table, parse)])


def _itp_tables(path: Path) -> dict[str, reading.Table]:
    """Table of each cluster by its number, '03'."""
    if reading.is_archive(path):
        tables = {
            name.removesuffix(".csv"): reading.parse_table(text, f"{path.name}/{name}", ITP_COLUMNS, ())
            for name, text in reading.read_archive(path).items()
        }
    else:
        tables = {path.name.split(".")[0]: reading.read_table(path, ITP_COLUMNS, ())}
    return {name.removeprefix("cluster"): table for name, table in tables.items()}


def load_philly(path: Path, cluster: str | None = None, rows: RowsPolicy = "refuse") -> Trace:
    """The trace in `philly.csv` or `philly.csv.gz`; `cluster`: one virtual cluster alone.

    Raises SpecError for a file that cannot be read, an unknown cluster, and bad rows (see `Rows`).
    """
    table = reading.read_table(path, PHILLY_COLUMNS, ())
    collected = Rows("philly" if cluster is None else f"philly:{cluster}", rows)
    if cluster is not None:
        index = table.column["cluster"]
        known = {cells[index] for _, cells in table.rows if len(cells) == len(table.column)}
        if cluster not in known:
            raise unknown("cluster", cluster, sorted(known))

    def parse(row: int, cell: dict[str, str]) -> RigidRow | None:
        name = cell["cluster"]
        if cluster not in (None, name):
            return None
        gpus = reading.gpus_of(cell["num_gpus"], "num_gpus")
        duration_s = reading.above_zero(cell["duration"], "duration")
        if abs(reading.number(cell["gpu_time"], "gpu_time") - duration_s * gpus) > 1.0:
            given = f"duration {cell['duration']!r} times num_gpus {cell['num_gpus']!r}"
            raise ValueError(f"gpu_time {cell['gpu_time']!r} is not {given}")
        return RigidRow(f"{name}-{row}", _seconds(cell["timestamp"]), gpus, duration_s)

    return collected.rigid(collected.read(table, parse))


def _seconds(stamp: str) -> float:
    """Seconds from year 1 to a local time."""
    try:
        when = datetime.fromisoformat(stamp)
    except ValueError:
        raise ValueError(f"timestamp {stamp!r} is not a date and time") from None
    if when.tzinfo is not None:
        raise ValueError(f"timestamp {stamp!r} has a time zone, and the others have none")
    return (when - datetime.min).total_seconds()
