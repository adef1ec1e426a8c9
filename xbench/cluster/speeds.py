"""Speed of a job on w GPUs, and the split of its step into computation and exposed communication.

**The ring.** Capes et al., Dynamic Scheduling of MPI-based Distributed Deep Learning Training Jobs (arXiv 1908.08082,
2019): f(w) = 1/T(w), T(w) = θ0·m/w + θ1·(w−1) + θ2·(w−1)·n/w + θ3, with m samples in a batch that w workers share and n
bytes of gradients. θ ≥ 0 are seconds a sample (θ0), latency of a further worker (θ1), seconds a byte that goes round
(θ2), and a constant cost of each step (θ3). Nothing is overlapped; overlap shows as a smaller θ2. Over several hosts
all workers wait for the slowest link in every round. θ1 and θ2 are then those between hosts (`across`), if larger, and
θ2 is multiplied by the number of rings that share that link.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from xbench.cluster.jobs import Job, PlacedSpeed, SlowerAcross, Speed, fewest_hosts
from xbench.errors import SpecError, listed, nearest
from xbench.records import Scaling, of_kind

Theta = tuple[float, float, float, float]

MAX_GPUS = 1_000_000
"""Largest number of GPUs in a table of speeds."""

FORWARD_SHARE = 1 / 3
"""Share of the forward pass in the computation without the fact `forward_share`: a backward pass costs two forwards."""


@dataclass(frozen=True)
class RingSpeed(Speed):
    """Steps a second on w GPUs that share a batch of `batch` samples and exchange `model_bytes` [B] of gradients.

    `theta`: seconds a sample, seconds a further worker, seconds a byte, seconds a step; all ≥ 0. Raises SpecError for
    invalid values, and for a step that would take no time on one GPU.
    """

    theta: Theta
    batch: float
    model_bytes: float
    across: tuple[float, float] | None = None
    """θ1 and θ2 of a ring that leaves its host; None: unknown."""

    def __post_init__(self) -> None:
        if len(self.theta) != 4 or not all(math.isfinite(value) and value >= 0 for value in self.theta):
            raise SpecError(f"a ring's θ is four numbers, none below zero, and {self.theta} is not")
        if not (math.isfinite(self.model_bytes) and self.model_bytes >= 0):
            raise SpecError(f"a ring's {self.model_bytes} bytes of gradients are below zero")
        if self.theta[0] * self.batch + self.theta[3] <= 0:
            raise SpecError(f"a ring of θ = {self.theta} takes no time for a step on one GPU")

    def step_s(self, gpus: int, rings: int = 0) -> float:
        """T(w) [s]; over several hosts if `rings`, at least 1, share the slowest link. Raises ValueError for no GPU."""
        if gpus < 1:
            raise ValueError(f"a ring of {gpus} GPUs has no speed")
        sample_s, _, _, step_s = self.theta
        return sample_s * self.batch / gpus + self._exposed_s(gpus, rings) + step_s

    def exposed_share(self, gpus: int) -> float:
        """Share of a step in which gradients are exchanged and nothing is computed: that of θ1 and θ2."""
        return self._exposed_s(gpus, 0) / self.step_s(gpus)

    def _exposed_s(self, gpus: int, rings: int) -> float:
        _, worker_s, byte_s, _ = self.theta
        if rings and self.across is not None:
            worker_s, byte_s = max(worker_s, self.across[0]), max(byte_s, rings * self.across[1])
        others = gpus - 1
        return worker_s * others + byte_s * others * self.model_bytes / gpus

    def on_hosts(self, gpus_per_host: int) -> PlacedSpeed | None:
        """See `Speed`."""
        return None if self.across is None else RingOnHosts(self, gpus_per_host)

    def __call__(self, gpus: int) -> float:
        """Steps a second, 1 / T(w)."""
        return 1.0 / self.step_s(gpus)


@dataclass(frozen=True)
class RingOnHosts(PlacedSpeed):
    """A ring on hosts of `gpus_per_host` GPUs each."""

    ring: RingSpeed
    gpus_per_host: int

    def __call__(self, gpus: int) -> float:
        """Steps a second on the fewest hosts."""
        return 1.0 / self.ring.step_s(gpus, int(gpus > self.gpus_per_host))

    def placed(self, hosts: tuple[int, ...], rings: int) -> float:
        """See `PlacedSpeed`."""
        return 1.0 / self.ring.step_s(sum(hosts), rings if len(hosts) > 1 else 0)


@dataclass(frozen=True)
class TableSpeed(Speed):
    """Measured work a second: `points` are (GPUs, work a second), GPUs ascending.

    It answers from the first to the last number of GPUs: between two points on a straight line of log(f) over log(w).
    Raises SpecError for no points, GPUs that do not ascend or are more than MAX_GPUS, and speeds that are not above
    zero.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise SpecError("a table of speeds has no points")
        before = 0
        for gpus, speed in self.points:
            if gpus <= before:
                raise SpecError(f"a table of speeds has {gpus} GPUs after {before}, and they have to ascend from one")
            if not (math.isfinite(speed) and speed > 0):
                raise SpecError(f"a table of speeds has {speed} at {gpus} GPUs, which is not above zero")
            before = gpus
        if before > MAX_GPUS:
            raise SpecError(f"a table of speeds reaches to {before} GPUs, and the most is {MAX_GPUS}")

    @classmethod
    def of(cls, speeds: Mapping[int, float]) -> TableSpeed:
        """A table from work a second by GPUs, in any order."""
        return cls(tuple(sorted(speeds.items())))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of GPUs that it answers for."""
        return tuple(range(self.points[0][0], self.points[-1][0] + 1))

    @cached_property
    def _known(self) -> dict[int, float]:
        known = dict(self.points)
        for (low, slow), (high, fast) in pairwise(self.points):
            for gpus in range(low + 1, high):
                share = math.log(gpus / low) / math.log(high / low)
                known[gpus] = slow * math.exp(share * math.log(fast / slow))
        return known

    def __call__(self, gpus: int) -> float:
        """Work a second. Raises ValueError for a number that it does not answer for."""
        known = self._known.get(gpus)
        if known is None:
            first, last = self.points[0][0], self.points[-1][0]
            raise ValueError(f"speeds are known from {first} to {last} GPUs, and not for {gpus}")
        return known


class HostSpeed(NamedTuple):
    """A measured speed [work/s], and the share of its time in which gradients are exchanged."""

    speed: float
    exchange: float


@dataclass(frozen=True)
class HostTable(TableSpeed, PlacedSpeed):
    """A table of GPUs on the fewest hosts of `gpus_per_host`, with measurements on more hosts.

    `by_shape` is indexed by the GPUs on each host, ascending; `by_hosts` by the number of hosts, with speeds and
    exchanges by GPUs. A shape without measurements has the speed of the least number of hosts, not below its own, on
    which so many GPUs were measured, or else of the largest below. On the fewest hosts it has the table's own speed.
    With k rings on a link the exchange takes k times as long.
    """

    gpus_per_host: int = 1
    by_shape: Mapping[tuple[int, ...], HostSpeed] = field(default_factory=dict, hash=False)
    by_hosts: Mapping[int, tuple[TableSpeed, TableSpeed]] = field(default_factory=dict, hash=False)

    def on_hosts(self, gpus_per_host: int) -> PlacedSpeed:
        """See `Speed`."""
        if gpus_per_host != self.gpus_per_host:
            raise SpecError(
                f"speeds that were measured on hosts of {self.gpus_per_host} GPUs say nothing of hosts of "
                f"{gpus_per_host}",
                hint=f"write --gpus-per-host {self.gpus_per_host}",
            )
        return self

    def placed(self, hosts: tuple[int, ...], rings: int) -> float:
        """See `PlacedSpeed`."""
        measured = self._measured(hosts)
        return measured.speed / (1 + (rings - 1) * measured.exchange)

    def fastest(self, gpus: int) -> float:
        """See `PlacedSpeed`. The fewest hosts are not always the fastest."""
        shapes = [measured.speed for shape, measured in self.by_shape.items() if sum(shape) == gpus]
        spread = [speeds(gpus) for speeds, _ in self.by_hosts.values() if gpus in speeds.sizes]
        return max([self(gpus), *shapes, *spread])

    def _measured(self, hosts: tuple[int, ...]) -> HostSpeed:
        if hosts in self.by_shape:
            return self.by_shape[hosts]
        gpus, host_count = sum(hosts), len(hosts)
        known = [count for count, (speeds, _) in self.by_hosts.items() if gpus in speeds.sizes]
        nearest_count = min((count for count in known if count >= host_count), default=max(known, default=0))
        speed, exchange = self(gpus), 0.0
        if nearest_count:
            speeds, exchanges = self.by_hosts[nearest_count]
            speed, exchange = speeds(gpus), exchanges(gpus)
        return HostSpeed(self(gpus) if host_count == len(fewest_hosts(gpus, self.gpus_per_host)) else speed, exchange)


def scaled_speed(record: object, mode: str | None = None) -> TableSpeed:
    """Samples a second of one mode of a scaling record, each worker with the batch that was profiled.

    On one GPU: the profiled batch over one worker's step without communication. `mode` is optional for a record of one
    mode. Raises SpecError for another kind of record, for a mode that it does not have, and for an unknown batch size.
    """
    scaling = of_kind(record, Scaling)
    if scaling is None:
        kind = getattr(record, "kind", type(record).__name__)
        raise SpecError(
            f"a record of kind {kind!r} holds no speeds by workers", hint="xbench plan RECORD --workers 2..64 makes one"
        )
    if mode is None:
        if len(scaling.modes) > 1:
            raise SpecError("the record scales several modes, and none is named", hint=", ".join(scaling.modes))
        mode = scaling.modes[0]
    if mode not in scaling.modes:
        close = nearest(mode, scaling.modes)
        hint = f"did you mean {close!r}?" if close else f"it has {listed(scaling.modes)}"
        raise SpecError(f"the record does not scale mode {mode!r}", hint=hint)
    if not scaling.workload.batch_size:
        raise SpecError(
            "the record does not know its batch size",
            hint="a trace has none; a factory tells it by make.batch_size = N",
        )
    alone = scaling.workload.batch_size / scaling.compute_s
    speeds = {point.workers: point.samples_per_s for point in scaling.points if point.mode == mode}
    return TableSpeed.of({1: alone} | {workers: speed for workers, speed in speeds.items() if speed is not None})


class StepTimes(NamedTuple):
    """Parts of one step [s]."""

    compute_s: float
    exposed_s: float


def step_times(job: Job) -> StepTimes | None:
    """Split of a step on the requested GPUs; None if the trace lacks the data. Raises SpecError for an invalid fact.

    A ring's is that on the fewest hosts, with its share of θ1 and θ2 exposed. Else the fact `exposed` is that share of
    `step_s`, or of `batch_size` over a speed in samples. The hidden part of the communication is unknown here, so the
    link counts as busy for the exposed part alone. On one GPU there is no communication, whatever the facts say.
    """
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
        step_s, share = given_s, exposed or 0.0
    if job.gpus == 1:
        share = 0.0
    return StepTimes(step_s * (1 - share), step_s * share)


def forward_share(job: Job) -> float:
    """Share of the forward pass in the computation, by default a third. Raises SpecError for an invalid fact."""
    share = _fact(job, "forward_share")
    return FORWARD_SHARE if share is None else share


def memory_bytes(job: Job) -> float | None:
    """Memory [B] that a job needs on each GPU; None if the trace lacks it. Raises SpecError for an invalid fact."""
    return _fact(job, "memory_bytes")


def _fact(job: Job, key: str) -> float | None:
    value = job.facts.get(key)
    if value is None:
        return None
    if isinstance(value, str) or not math.isfinite(value):
        raise SpecError(f"job {job.name!r}: {key} = {value} is not a number")
    try:
        return checked_fact(key, value)
    except ValueError as error:
        raise SpecError(f"job {job.name!r}: {error}") from None


def checked_fact(key: str, value: float) -> float:
    """The value of a fact of a job. Raises ValueError for one that it cannot have."""
    if key in ("exposed", "forward_share") and not 0 <= value < 1:
        raise ValueError(f"{key} = {value:g} is not a share: it must be from 0 to below 1")
    if value < 0 or (key in ("step_s", "batch_size") and value == 0):
        raise ValueError(f"{key} = {value:g} is {'below' if value < 0 else 'not above'} zero")
    return value
