"""Microsoft's ITP clusters: two months of ten clusters' deep-learning jobs (69,351 jobs, 1,632,719.7 GPU hours).

Source: github.com/microsoft/elasticflow-traces, data/raw-traces.tar.gz (2021-03-04 to 2021-05-03; Gu et al.,
ElasticFlow, ASPLOS 2023). One CSV per cluster, cluster01.csv to cluster10.csv:

| column | meaning |
| --- | --- |
| job_id | unique over all clusters |
| submission_time | seconds since the collection began |
| duration | seconds that the job ran |
| num_gpu | GPUs that it requested and had |

Speeds on other numbers of GPUs are unknown, so jobs are rigid. All clusters together are one trace unless one is named.
Arrivals count from the first of the chosen jobs. A job's facts name its cluster.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

from xbench.cluster.jobs import Job, RigidSpeed
from xbench.cluster.traces.reading import Table, above_zero, number, parse_table, read_archive, read_table, whole
from xbench.cluster.traces.trace import Rows, RowsPolicy, Trace
from xbench.errors import unknown

COLUMNS = ("job_id", "submission_time", "duration", "num_gpu")


def load_itp(path: Path, cluster: str | None = None, rows: RowsPolicy = "refuse") -> Trace:
    """The trace in `raw-traces.tar.gz`, or in one of its CSVs; `cluster`: '03' or 'cluster03' alone.

    Raises SpecError for a file that cannot be read, an unknown cluster, and bad rows (see `Rows`).
    """
    tables = _tables(path)
    known = {name.removeprefix("cluster"): table for name, table in tables.items()}
    if cluster is not None:
        wanted = cluster.removeprefix("cluster").zfill(2)
        if wanted not in known:
            raise unknown("cluster", cluster, known)
        known = {wanted: known[wanted]}
    collected = Rows("itp" if cluster is None else f"itp:cluster{next(iter(known))}", rows)
    jobs: list[tuple[str, float, int, float, str]] = []
    names: set[str] = set()
    for name, table in known.items():
        indexes = [table.column[column] for column in COLUMNS]
        for row, cells in table.numbered():
            try:
                table.check_width(cells)
                job, submitted, duration, gpus = (cells[index] for index in indexes)
                if not job or job in names:
                    raise ValueError(f"there is already a job {job!r}" if job else "job_id is empty")
                requested = whole(gpus, "num_gpu")
                if requested < 1:
                    raise ValueError(f"num_gpu {gpus!r} is less than one")
                jobs.append(
                    (job, number(submitted, "submission_time"), requested, above_zero(duration, "duration"), name)
                )
                names.add(job)
            except ValueError as problem:
                collected.reject(table.file, row, str(problem))
    began_s = min((submitted_s for _, submitted_s, *_ in jobs), default=0.0)
    facts = {name: {"cluster": name} for name in known}
    speeds = {requested: RigidSpeed(requested) for requested in {requested for _, _, requested, _, _ in jobs}}
    return collected.trace(
        Job(job, submitted_s - began_s, requested, work_s, speeds[requested], facts=facts[name])
        for job, submitted_s, requested, work_s, name in jobs
    )


def _tables(path: Path) -> dict[str, Table]:
    """Table of each cluster by name, 'cluster03'."""
    if path.is_file() and tarfile.is_tarfile(path):
        return {
            name.removesuffix(".csv"): parse_table(text, f"{path.name}/{name}", COLUMNS, ())
            for name, text in read_archive(path).items()
        }
    return {path.name.split(".")[0]: read_table(path, COLUMNS, ())}
