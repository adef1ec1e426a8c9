"""Split of a job's step, on the GPUs that it requests, into computation and exposed communication.

| source | step | exposed |
| --- | --- | --- |
| a `RingSpeed` | its T(w), on the fewest hosts | its share of θ1 and θ2 |
| facts `exposed` and `step_s` | `step_s` [s] | `exposed` of it, a share |
| facts `exposed` and `batch_size`, speed in samples | batch_size / speed | `exposed` of it, a share |

On one GPU there is no communication, whatever the facts say. The hidden part of the communication is unknown here, so
the link counts as busy for the exposed part alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from xbench.cluster.hosts import RingOnHosts, SlowerAcross
from xbench.cluster.jobs import Job
from xbench.cluster.speeds import RingSpeed
from xbench.errors import SpecError

FORWARD_SHARE = 1 / 3
"""Share of the forward pass in the computation without the fact `forward_share`: a backward pass costs two forwards."""


class StepTimes(NamedTuple):
    """Parts of one step [s]."""

    compute_s: float
    exposed_s: float


def step_times(job: Job) -> StepTimes | None:
    """Split of a step on the requested GPUs; None if the trace lacks the data. Raises SpecError for an invalid fact."""
    speed, rings = job.speed, 0
    if isinstance(speed, SlowerAcross):
        speed = speed.speed
    elif isinstance(speed, RingOnHosts):
        rings, speed = int(job.gpus > speed.gpus_per_host), speed.ring
    if isinstance(speed, RingSpeed):
        step_s = speed.step_s(job.gpus, rings)
        share = 1 - speed.step_s(job.gpus) * (1 - speed.exposed_share(job.gpus)) / step_s
    else:
        known = {key: _fact(job, key) for key in ("step_s", "batch_size", "exposed")}
        given_s, batch, exposed = known["step_s"], known["batch_size"], known["exposed"]
        if given_s is None and batch is not None:
            given_s = batch / job.speed(job.gpus)
        if given_s is None or (exposed is None and job.gpus > 1):
            return None
        if given_s <= 0:
            raise SpecError(f"job {job.name!r}: a step of {given_s:g} s takes no time")
        if exposed is not None and not 0 <= exposed < 1:
            raise SpecError(
                f"job {job.name!r}: exposed = {exposed:g} is not a share of a step", hint="0.25 is a quarter"
            )
        step_s, share = given_s, exposed or 0.0
    if job.gpus == 1:
        share = 0.0
    return StepTimes(step_s * (1 - share), step_s * share)


def forward_share(job: Job) -> float:
    """Share of the forward pass in the computation, by default a third. Raises SpecError for a fact outside [0, 1)."""
    share = _fact(job, "forward_share")
    if share is None:
        return FORWARD_SHARE
    if not 0 <= share < 1:
        raise SpecError(f"job {job.name!r}: forward_share = {share:g} is not a share of its computation")
    return share


def memory_bytes(job: Job) -> float | None:
    """Memory [B] that a job needs on each GPU; None if the trace lacks it. Raises SpecError for a negative number."""
    needed = _fact(job, "memory_bytes")
    if needed is not None and needed < 0:
        raise SpecError(f"job {job.name!r}: memory_bytes = {needed:g} is below zero")
    return needed


def require_steps(policy: str, jobs: Iterable[Job]) -> None:
    """Raise SpecError for jobs without known step times, naming the first such job and their number."""
    _require([job for job in jobs if step_times(job) is None], policy, "seconds that a step computes and communicates",
             "give it columns exposed and step_s, or take an exclusive policy such as srtf")  # fmt: skip


def require_memory(policy: str, jobs: Iterable[Job]) -> None:
    """Raise SpecError for jobs without a known need of memory, naming the first such job and their number."""
    _require([job for job in jobs if memory_bytes(job) is None], policy, "bytes of memory that a job needs of a GPU",
             "give it a column memory_bytes, or leave memory= out")  # fmt: skip


def _require(lacking: list[Job], policy: str, what: str, hint: str) -> None:
    if lacking:
        others = f" and {len(lacking) - 1} others" if len(lacking) > 1 else ""
        raise SpecError(
            f"policy {policy!r} needs the {what}, and the trace does not tell those of job {lacking[0].name!r}{others}",
            hint=hint,
        )


def _fact(job: Job, key: str) -> float | None:
    value = job.facts.get(key)
    if value is None:
        return None
    if isinstance(value, str) or not math.isfinite(value):
        raise SpecError(f"job {job.name!r}: {key} = {value} is not a number")
    return value
