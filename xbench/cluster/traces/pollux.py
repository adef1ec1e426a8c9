"""Workloads of Pollux: 160 jobs in 8 hours, of six applications whose steps were measured on up to 64 T4 GPUs.

Source: github.com/petuum/adaptdl, branch osdi21-artifact, simulator/ (Qiao et al., Pollux, OSDI 2021): workload-N.csv
has the jobs, APP/placements.csv steps on up to 4 hosts of 4 GPUs, APP/scalability.csv those on up to 16 hosts.

**Speed** is samples a second at the job's own batch size, whatever its GPUs: the artifact's baselines hold it fixed,
and only Pollux itself would change it. `TableSpeed` interpolates between the packed numbers of GPUs that were measured.
Each GPU has batch/w samples. Its step time is interpolated between the measured batch sizes, and a larger batch is
accumulated: `a` further accumulations take a·(step_time − sync_time) more. As in the artifact (`Job.update_local_bsz`),
one GPU accumulates at least once if the batch is above the application's initial one (`INITIAL_BATCH`). If a GPU would
have fewer samples than were ever measured, there is no speed. On hosts, every measured placement has its speed (see
`HostTable`; of hosts in several orders, which are rings in several orders, the one with the GPUs ascending).

**Work** is in samples: the batch size times the application's steps at it. The artifact's simulator advances a job by
goodput, from the gradient noise of each epoch, and decides once a minute, so its averages are not comparable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from xbench.cluster.jobs import Job
from xbench.cluster.speeds import HostSpeed, HostTable, TableSpeed
from xbench.cluster.traces import Rows, RowsPolicy, Trace
from xbench.cluster.traces.reading import above_zero, number, read_table, whole
from xbench.errors import SpecError, nearest

K = TypeVar("K", int, tuple[int, ...], tuple[int, int])
Times = dict[float, Sequence[float]]
"""Step time [s] and exchange of gradients [s] in it, by local batch size."""

GPUS_A_HOST = 4
MAX_LOCAL = {"yolov3": 8.0}
"""Largest number of samples on one GPU at once, if the artifact allows fewer than were measured."""

INITIAL_BATCH = {"bert": 12, "cifar10": 128, "deepspeech2": 20, "imagenet": 200, "ncf": 256, "yolov3": 8}
"""Batch size at which each application was tuned on one GPU (Qiao et al., table 1)."""

STEPS: Mapping[str, Mapping[int, int]] = {
    "bert": {384: 480},
    "cifar10": {256: 20377, 1024: 5722, 2048: 3178, 4096: 2011},
    "deepspeech2": {160: 4041, 320: 2264, 640: 1423},
    "imagenet": {200: 576525, 800: 150231, 3200: 42123, 6400: 23972},
    "ncf": {4096: 12172, 8192: 6122, 16384: 3069, 32768: 1548},
    "yolov3": {16: 52905, 32: 27430, 64: 14577},
}
"""Steps until the last epoch (2, 100, 80, 90, 10 and 50 epochs), by application and batch size.

The last `iteration` of traces/APP/validation-BATCH.csv, up to the application's `max_epochs` in applications.py.
"""


@dataclass(frozen=True)
class Measured:
    """Steps of one application on one number of packed GPUs, local batch sizes ascending. Times in seconds."""

    local: tuple[float, ...]
    step_s: tuple[float, ...]
    sync_s: tuple[float, ...]


@dataclass(frozen=True)
class Application:
    """Measured steps of one application, by packed GPUs."""

    name: str
    by_gpus: Mapping[int, Measured]
    by_shape: Mapping[tuple[int, ...], Measured] = field(default_factory=dict)
    """By GPUs on each of up to 4 hosts, ascending."""
    by_hosts: Mapping[tuple[int, int], Measured] = field(default_factory=dict)
    """By hosts and GPUs."""

    def step(self, batch: int, gpus: int) -> tuple[float, float] | None:
        """Step time [s] of the whole batch, and its exchange of gradients [s]; None without a measurement."""
        measured = self.by_gpus.get(gpus)
        return None if measured is None else self._at(measured, batch, gpus)

    def _at(self, measured: Measured, batch: int, gpus: int) -> tuple[float, float] | None:
        """As `step`; None if a GPU has too few samples."""
        most = min(MAX_LOCAL.get(self.name, math.inf), measured.local[-1])
        least = int(gpus == 1 and batch > INITIAL_BATCH.get(self.name, math.inf))
        accumulations = max(least, math.ceil(batch / gpus / most - 1e-8) - 1)
        at_once = batch / gpus / (accumulations + 1)
        if at_once < measured.local[0]:
            return None
        step_s = float(np.interp(at_once, measured.local, measured.step_s))
        sync_s = float(np.interp(at_once, measured.local, measured.sync_s))
        return step_s + accumulations * (step_s - sync_s), sync_s

    def speed(self, batch: int) -> HostTable:
        """Samples a second at that batch size. Raises SpecError if it fits no number of GPUs."""
        packed = self._speeds(batch, self.by_gpus, lambda gpus: gpus)
        if not packed:
            raise SpecError(f"{self.name} was never measured with a batch as small as {batch}")
        spread: dict[int, dict[int, HostSpeed]] = {}
        for (hosts, gpus), measured in self._speeds(batch, self.by_hosts, lambda key: key[1]).items():
            spread.setdefault(hosts, {})[gpus] = measured
        return HostTable(
            tuple((gpus, measured.speed) for gpus, measured in packed.items()),
            gpus_per_host=GPUS_A_HOST,
            by_shape=self._speeds(batch, self.by_shape, sum),
            by_hosts={
                hosts: (
                    TableSpeed.of({gpus: measured.speed for gpus, measured in by_gpus.items()}),
                    TableSpeed.of({gpus: measured.exchange for gpus, measured in by_gpus.items()}),
                )
                for hosts, by_gpus in spread.items()
            },
        )

    def _speeds(self, batch: int, by_key: Mapping[K, Measured], gpus: Callable[[K], int]) -> dict[K, HostSpeed]:
        """The speeds of the measurements that have enough samples."""
        steps = {key: self._at(measured, batch, gpus(key)) for key, measured in by_key.items()}
        return {key: HostSpeed(batch / step[0], step[1] / step[0]) for key, step in steps.items() if step is not None}


def steps_of(application: str, batch: int) -> int:
    """Steps of that application at that batch size. Raises SpecError if they are not in `STEPS`."""
    known = STEPS.get(application, {})
    if batch not in known:
        sizes = ", ".join(map(str, known))
        hint = f"{application}'s is known at batch {sizes}" if known else None
        raise SpecError(f"the work of {application} at batch {batch} is not known", hint=hint)
    return known[batch]


def load_application(folder: Path, name: str) -> Application:
    """The measurements in `folder`/`name`. Raises SpecError for invalid files.

    A placement is a digit for each host: '24' is 2 GPUs on one and 4 on another.
    """
    packed: dict[int, Times] = {}
    shapes: dict[tuple[int, ...], Times] = {}
    spread: dict[tuple[int, int], Times] = {}
    times = dict.fromkeys(("local_bsz", "step_time", "sync_time"), above_zero)
    columns: dict[str, Callable[[str, str], Any]] = {"placement": _shape, **times}
    for shape, local, *took in read_table(folder / name / "placements.csv", tuple(columns)).parsed(columns):
        if set(shape[1:]) <= {GPUS_A_HOST}:
            packed.setdefault(sum(shape), {})[local] = took
        if list(shape) == sorted(shape):
            shapes.setdefault(shape, {})[local] = took
    columns = {"num_nodes": whole, "num_replicas": whole, **times}
    for hosts, gpus, local, *took in read_table(folder / name / "scalability.csv", tuple(columns)).parsed(columns):
        if gpus == hosts * GPUS_A_HOST:
            packed.setdefault(gpus, {})[local] = took
        spread.setdefault((hosts, gpus), {})[local] = took
    return Application(name, _measured(packed), _measured(shapes), _measured(spread))


def _shape(cell: str, what: str) -> tuple[int, ...]:
    """GPUs on each host, from their digits."""
    if not cell.isdigit():
        raise ValueError(f"{what} {cell!r} is not a row of digits")
    return tuple(map(int, cell))


def _measured(times: Mapping[K, Times]) -> dict[K, Measured]:
    """Steps by the same keys, which ascend."""
    measured = {}
    for key, by_local in sorted(times.items()):
        local = sorted(by_local)
        step_s, sync_s = zip(*(by_local[batch] for batch in local), strict=True)
        measured[key] = Measured(tuple(local), step_s, sync_s)
    return measured


def load_pollux(folder: Path, workload: int = 1, rows: RowsPolicy = "refuse") -> Trace:
    """Workload N of the artifact.

    A job's facts are its application, its batch_size, and `exposed`: the share of its step in which gradients are
    exchanged (sync_time) on the requested GPUs. Raises SpecError for files that cannot be read, and for bad rows (see
    `Rows`).
    """
    path = folder / "workloads" / f"workload-{workload}.csv"
    table = read_table(path, ("name", "time", "application", "num_replicas", "batch_size"), ())
    applications = {
        path.parent.name: load_application(folder, path.parent.name) for path in sorted(folder.glob("*/placements.csv"))
    }
    speed = cache(lambda name, batch: applications[name].speed(batch))
    names: set[str] = set()

    def parse(row: int, cell: dict[str, str]) -> Job:
        application = applications.get(cell["application"])
        if application is None:
            close = nearest(cell["application"], applications)
            raise ValueError(
                f"application {cell['application']!r} was not measured" + (f", {close!r} was" if close else "")
            )
        name, batch = application.name, whole(cell["batch_size"], "batch_size")
        gpus = whole(cell["num_replicas"], "num_replicas")
        speeds = speed(name, batch)
        step = application.step(batch, gpus)
        if step is None:
            raise ValueError(f"{name} of batch {batch} was not measured on {gpus} packed GPUs")
        if cell["name"] in names:
            raise ValueError(f"there is already a job {cell['name']!r}")
        job = Job(
            cell["name"], number(cell["time"], "time"), gpus, steps_of(name, batch) * batch, speeds,
            facts={"application": name, "batch_size": float(batch), "exposed": step[1] / step[0]},
        )  # fmt: skip
        names.add(job.name)
        return job

    collected = Rows(f"pollux:workload-{workload}", rows)
    return collected.trace(collected.read(table, parse))
