"""Speed of a job on w GPUs: a table of measurements, a model of a ring, or a prediction of `xbench scale`.

| speed | source | unit of work |
| --- | --- | --- |
| `TableSpeed` | measured points, straight lines between them in log(w), log(f) | the points' own |
| `RingSpeed` | a step's time on a ring: T(w) = θ0·m/w + θ1·(w−1) + θ2·(w−1)·n/w + θ3 | steps of the whole batch m |
| `HostTable` | a table that was also measured on GPUs of several hosts | the points' own |
| `scaled_speed` | one mode of an `xbench scale` record, as a table | samples |

**The ring.** Capes et al., Dynamic Scheduling of MPI-based Distributed Deep Learning Training Jobs (arXiv 1908.08082,
2019): f(w) = 1/T(w), with m samples in a batch that w workers share and n bytes of gradients. θ ≥ 0 are seconds a
sample (θ0), latency of a further worker (θ1), seconds a byte that goes round (θ2), and a constant cost of each step
(θ3). Nothing is overlapped; overlap shows as a smaller θ2. Over several hosts all workers wait for the slowest link in
every round. θ1 and θ2 are then those between hosts (`across`), if larger, and θ2 is multiplied by the number of rings
that share that link.

**The fit** is non-negative least squares on shares: each run's row is divided by its measured time, so that a run of
1 s on 1 GPU and one of 0.1 s on 16 count alike. Runs of a single batch cannot separate θ0, θ2 and θ3: 1/w, 1 − 1/w and
1 are linearly dependent. T(w) is then still valid for that batch, and `RingFit.identified` is False. The held-out error
is that of each run predicted from the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from xbench.cluster.hosts import PlacedSpeed, RingOnHosts, fewest_hosts
from xbench.errors import SpecError, listed, nearest
from xbench.records import Scaling, of_kind

FloatArray = npt.NDArray[np.float64]
Theta = tuple[float, float, float, float]

MIN_SIZES = 3
"""Least number of sizes. Two sizes lie on many rings; a third shows whether a ring fits."""

_ROUNDING = 1e-9
"""Share of a step that is only rounding."""


@dataclass(frozen=True)
class RingSpeed:
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
        if not (math.isfinite(self.batch) and self.batch > 0):
            raise SpecError(f"a ring's batch of {self.batch} samples is not above zero")
        if not (math.isfinite(self.model_bytes) and self.model_bytes >= 0):
            raise SpecError(f"a ring's {self.model_bytes} bytes of gradients are below zero")
        if self.across is not None and not all(math.isfinite(value) and value >= 0 for value in self.across):
            raise SpecError(f"θ1 and θ2 between hosts are two numbers, none below zero, and {self.across} is not")
        if self.theta[0] * self.batch + self.theta[3] <= 0:
            raise SpecError(f"a ring of θ = {self.theta} takes no time for a step on one GPU")

    @property
    def sizes(self) -> None:
        """None: any number of GPUs."""
        return

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
        """See `KnowsHosts`."""
        return None if self.across is None else RingOnHosts(self, gpus_per_host)

    def __call__(self, gpus: int) -> float:
        """Steps a second, 1 / T(w)."""
        return 1.0 / self.step_s(gpus)


class RingRun(NamedTuple):
    """One measured run: a step of `batch` samples in all took `step_s` on `gpus` GPUs."""

    gpus: int
    batch: float
    step_s: float


@dataclass(frozen=True)
class RingFit:
    """A ring fitted to runs. All shares are fitted over measured, minus one, in the order of the runs."""

    theta: Theta
    model_bytes: float
    runs: tuple[RingRun, ...]
    residuals: tuple[float, ...]
    held_out: tuple[float, ...]
    """Error of each run under the fit to all the others."""
    identified: bool
    """True if the runs determine all four θ. If not, only predictions for the runs' own batch are valid."""

    @property
    def residual(self) -> float:
        """The largest residual, as a share without its sign."""
        return max(abs(share) for share in self.residuals)

    @property
    def held_out_error(self) -> float:
        """The largest held-out error, as a share without its sign."""
        return max(abs(share) for share in self.held_out)

    def speed(self, batch: float) -> RingSpeed:
        """Speed of a job with that batch. Raises SpecError for a batch that the fit cannot predict (`identified`)."""
        batches = {run.batch for run in self.runs}
        if not self.identified and batch not in batches:
            known = ", ".join(f"{known_batch:g}" for known_batch in sorted(batches))
            raise SpecError(
                f"runs of batch {known} say nothing of batch {batch:g}", hint="fit runs of more batches and sizes"
            )
        return RingSpeed(self.theta, batch, self.model_bytes)


def fit_ring(runs: Sequence[RingRun], model_bytes: float) -> RingFit:
    """Fit θ ≥ 0 to runs of one model of `model_bytes` [B], by non-negative least squares on shares.

    Raises SpecError for fewer than three numbers of GPUs, for a time or a batch that is not finite and above zero, for
    less than one GPU, and for runs that leave a step on one GPU without any time.
    """
    for run in runs:
        if run.gpus < 1:
            raise SpecError(f"a run on {run.gpus} GPUs cannot be fitted")
        for name, value in (("batch", run.batch), ("step_s", run.step_s)):
            if not (math.isfinite(value) and value > 0):
                raise SpecError(f"a run on {run.gpus} GPUs has {name} = {value}, which is not a number above zero")
    if not (math.isfinite(model_bytes) and model_bytes >= 0):
        raise SpecError(f"{model_bytes} bytes of gradients cannot be fitted")
    sizes = sorted({run.gpus for run in runs})
    if len(sizes) < MIN_SIZES:
        raise SpecError(
            f"runs on {' and '.join(str(size) for size in sizes) or 'no'} GPUs do not make a ring",
            hint=f"measure at least {MIN_SIZES} numbers of GPUs",
        )
    rows = np.array([_terms(run, model_bytes) for run in runs])
    times = np.array([run.step_s for run in runs])
    shares = rows / times[:, None]
    theta = _nonnegative(shares)
    held_out = []
    for index in range(len(runs)):
        others = np.delete(shares, index, axis=0)
        held_out.append(float(shares[index] @ _nonnegative(others)) - 1.0)
    fitted = (float(theta[0]), float(theta[1]), float(theta[2]), float(theta[3]))
    alone_s = fitted[0] * min(run.batch for run in runs) + fitted[3]
    if alone_s <= _ROUNDING * float(times.min()):
        raise SpecError(
            "no ring fits the runs: the nearest leaves a step on one GPU without any time",
            hint="add runs, one of them on one GPU",
        )
    return RingFit(
        fitted,
        model_bytes,
        tuple(runs),
        tuple(float(share) - 1.0 for share in shares @ theta),
        tuple(held_out),
        int(np.linalg.matrix_rank(_scaled(shares)[0])) == 4,
    )


def _terms(run: RingRun, model_bytes: float) -> list[float]:
    """Coefficients of the four θ."""
    return [run.batch / run.gpus, run.gpus - 1.0, (run.gpus - 1.0) * model_bytes / run.gpus, 1.0]


def _scaled(shares: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Columns scaled to length one, and their lengths: bytes and samples differ by ten orders of magnitude."""
    lengths = np.linalg.norm(shares, axis=0)
    lengths[lengths == 0] = 1.0
    return shares / lengths, lengths


def _nonnegative(shares: FloatArray) -> FloatArray:
    """θ ≥ 0 whose rows come closest to 1."""
    columns, lengths = _scaled(shares)
    solution, _ = nnls(columns, np.ones(len(columns)))
    theta: FloatArray = np.asarray(solution, dtype=np.float64) / lengths
    return theta


@dataclass(frozen=True)
class TableSpeed:
    """Measured work a second: `points` are (GPUs, work a second), GPUs ascending.

    With `between` it also answers between two points, on a straight line of log(f) over log(w). With `outside` it also
    answers below the first and above the last, on the line of the two nearest points; a single point then scales
    proportionally. Raises SpecError for no points, GPUs that do not ascend, and speeds that are not above zero.
    """

    points: tuple[tuple[int, float], ...]
    between: bool = True
    outside: bool = False

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

    @classmethod
    def of(cls, speeds: Mapping[int, float], *, between: bool = True, outside: bool = False) -> TableSpeed:
        """A table from work a second by GPUs, in any order."""
        return cls(tuple(sorted(speeds.items())), between, outside)

    @cached_property
    def sizes(self) -> tuple[int, ...] | None:
        """The numbers of GPUs that it answers for; None for any."""
        if self.outside:
            return None
        if self.between:
            return tuple(range(self.points[0][0], self.points[-1][0] + 1))
        return tuple(gpus for gpus, _ in self.points)

    @cached_property
    def _known(self) -> dict[int, float]:
        known = dict(self.points)
        for (low, slow), (high, fast) in zip(self.points, self.points[1:], strict=False):
            if self.between:
                known |= {gpus: _on_line(gpus, low, slow, high, fast) for gpus in range(low + 1, high)}
        return known

    def __call__(self, gpus: int) -> float:
        """Work a second. Raises ValueError for a number that it does not answer for."""
        known = self._known.get(gpus)
        if known is not None:
            return known
        first, last = self.points[0][0], self.points[-1][0]
        if self.outside and gpus >= 1 and not first <= gpus <= last:
            if len(self.points) == 1:
                return self.points[0][1] * gpus / first
            (low, slow), (high, fast) = self.points[:2] if gpus < first else self.points[-2:]
            return _on_line(gpus, low, slow, high, fast)
        raise ValueError(f"speeds are known from {first} to {last} GPUs, and not for {gpus}")


class OnHosts(NamedTuple):
    """A measured speed [work/s], and the share of its time in which gradients are exchanged."""

    speed: float
    exchange: float


@dataclass(frozen=True)
class HostTable(TableSpeed):
    """A table of GPUs on the fewest hosts of `gpus_per_host`, with measurements on more hosts.

    `by_shape` is indexed by the GPUs on each host, ascending; `by_hosts` by the number of hosts, with speeds and
    exchanges by GPUs. A shape without measurements has the speed of the least number of hosts, not below its own, on
    which so many GPUs were measured, or else of the largest below. On the fewest hosts it has the table's own speed.
    With k rings on a link the exchange takes k times as long.
    """

    gpus_per_host: int = 1
    by_shape: Mapping[tuple[int, ...], OnHosts] = field(default_factory=dict, hash=False)
    by_hosts: Mapping[int, tuple[TableSpeed, TableSpeed]] = field(default_factory=dict, hash=False)

    def on_hosts(self, gpus_per_host: int) -> PlacedSpeed:
        """See `KnowsHosts`."""
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
        spread = [speeds(gpus) for speeds, _ in self.by_hosts.values() if _covers(speeds, gpus)]
        return max([self(gpus), *shapes, *spread])

    def _measured(self, hosts: tuple[int, ...]) -> OnHosts:
        if hosts in self.by_shape:
            return self.by_shape[hosts]
        gpus, host_count = sum(hosts), len(hosts)
        known = [count for count, (speeds, _) in self.by_hosts.items() if _covers(speeds, gpus)]
        nearest_count = min((count for count in known if count >= host_count), default=max(known, default=0))
        speed, exchange = self(gpus), 0.0
        if nearest_count:
            speeds, exchanges = self.by_hosts[nearest_count]
            speed, exchange = speeds(gpus), exchanges(gpus)
        return OnHosts(self(gpus) if host_count == len(fewest_hosts(gpus, self.gpus_per_host)) else speed, exchange)


def _covers(speeds: TableSpeed, gpus: int) -> bool:
    return speeds.sizes is None or gpus in speeds.sizes


def _on_line(gpus: int, low: int, slow: float, high: int, fast: float) -> float:
    """f on the straight line of log f over log w through (low, slow) and (high, fast)."""
    share = math.log(gpus / low) / math.log(high / low)
    return slow * math.exp(share * math.log(fast / slow))


def scaled_speed(record: object, mode: str | None = None) -> TableSpeed:
    """Samples a second of one mode of an `xbench scale` record, each worker with the batch that was profiled.

    On one GPU: the profiled batch over one worker's step without communication. `mode` is optional for a record of one
    mode. Raises SpecError for another kind of record, and for a mode that it does not have.
    """
    scaling = of_kind(record, Scaling)
    if scaling is None:
        kind = getattr(record, "kind", type(record).__name__)
        raise SpecError(f"a record of kind {kind!r} holds no speeds by workers", hint="xbench scale RECORD makes one")
    if mode is None:
        if len(scaling.modes) > 1:
            raise SpecError("the record scales several modes, and none is named", hint=", ".join(scaling.modes))
        mode = scaling.modes[0]
    if mode not in scaling.modes:
        close = nearest(mode, scaling.modes)
        hint = f"did you mean {close!r}?" if close else f"it has {listed(scaling.modes)}"
        raise SpecError(f"the record does not scale mode {mode!r}", hint=hint)
    alone = scaling.workload.batch_size / scaling.compute_s
    return TableSpeed.of(
        {1: alone} | {point.workers: point.samples_per_s for point in scaling.points if point.mode == mode}
    )
