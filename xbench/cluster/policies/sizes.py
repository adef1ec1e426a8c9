"""The numbers of GPUs that an elastic policy may give a job, and the check that a trace knows speeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xbench.cluster.jobs import Job
from xbench.cluster.policy import Cluster
from xbench.errors import SpecError


def doubling_sizes(job: Job, cluster: Cluster) -> tuple[int, ...]:
    """The allowed powers of two times the least allowed number; () if there is none.

    If the speed is known for some sizes alone, it starts from the least of these, and has only these.
    """
    most = most_of(job, cluster)
    known = job.speed.sizes
    size = job.least if known is None else min((size for size in known if job.least <= size <= most), default=most + 1)
    sizes = []
    while size <= most:
        if known is None or size in known:
            sizes.append(size)
        size *= 2
    return tuple(sizes)


def all_sizes(job: Job, cluster: Cluster) -> Sequence[int]:
    """Every allowed number of GPUs, ascending."""
    most = most_of(job, cluster)
    if job.speed.sizes is None:
        return range(job.least, most + 1)
    return tuple(size for size in job.speed.sizes if job.least <= size <= most)


def most_of(job: Job, cluster: Cluster) -> int:
    """The largest number of GPUs that the job may have on this cluster."""
    return cluster.gpus if job.most is None else min(job.most, cluster.gpus)


def require_speeds(policy: str, cluster: Cluster, jobs: Iterable[Job]) -> None:
    """Refuse a trace in which a job has a known speed on no other GPUs than it requests, or on no allowed number.

    Raises SpecError with the first such job and their number. A job that allows no other number needs no further
    speeds.
    """
    jobs = list(jobs)
    lacking = [job for job in jobs if job.rigid and (job.least, most_of(job, cluster)) != (job.gpus, job.gpus)]
    if lacking:
        others = f" and {len(lacking) - 1} others" if len(lacking) > 1 else ""
        raise SpecError(
            f"policy {policy!r} needs speeds on several numbers of GPUs, and the trace knows that of job "
            f"{lacking[0].name!r}{others} on the {lacking[0].gpus} that it asked for alone",
            hint="give the trace speeds, or take a rigid policy such as srtf",
        )
    impossible = [job for job in jobs if not all_sizes(job, cluster)]
    if impossible:
        job = impossible[0]
        raise SpecError(
            f"policy {policy!r}: job {job.name!r} takes {job.least} to {most_of(job, cluster)} GPUs, and its speed is "
            f"known on none of these ({len(impossible)} such jobs)"
        )
