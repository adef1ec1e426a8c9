"""Runs of two local ranks, the frames of their records, and timed blocks."""

from __future__ import annotations

from typing import Any

from xbench.rank.events import BlockTimed
from xbench.records import Environment, FabricRecord, WorkloadRecord
from xbench.runs.event_collector import Collector
from xbench.runs.frames import RunFrame
from xbench.schedules import parse_modes
from xbench.spec import Effort, FabricSpec, RunSpec, WorkloadSpec

LOCAL = FabricSpec(name="local", ranks=2)
A = WorkloadSpec(name="resnet18", batch_size=4)
B = WorkloadSpec(name="vgg11", batch_size=2)
MACHINE = Environment(hostname="h", cpu="c", cores=2, memory_bytes=1, python="3.11", torch="2.15", device="cpu",
                      device_count=0, xbench="0", commit=None)  # fmt: skip
LINK = FabricRecord(name="local", spec="local:ranks=2", label="real", backend="gloo", hosts=1, ranks_per_host=2,
                    world_size=2)  # fmt: skip


def run_of(modes: str = "", *workloads: WorkloadSpec, **fields: Any) -> RunSpec:
    """A comparison of these modes, or a profile if there are none, of one resnet18 unless told otherwise."""
    given: dict[str, Any] = {"kind": "comparison", "modes": parse_modes(modes)} if modes else {"kind": "profile"}
    return RunSpec(**given | {"workloads": workloads or (A,), "fabric": LOCAL, "effort": Effort()} | fields)


def collector_of(run: RunSpec) -> Collector:
    return Collector(run, [spec.batch_size or 1 for spec in run.workloads])


def record_of(spec: WorkloadSpec) -> WorkloadRecord:
    return WorkloadRecord(
        spec=spec, title=spec.title, parameters=1, tensors=1, grad_bytes=4, batch_size=spec.batch_size or 1, input=""
    )


def frame(run: RunSpec, **fields: Any) -> RunFrame:
    made = RunFrame(
        created="2026-01-31T14:25:01+00:00", command="xbench compare", run=run, environment=MACHINE, fabric=LINK,
        warnings=[], emulated=None, workloads=[record_of(spec) for spec in run.workloads], failed={},
    )  # fmt: skip
    return made.model_copy(update=fields)


def block(mode: str, stamps: list[float], round_: int = 0, **fields: Any) -> BlockTimed:
    return BlockTimed(**{"mode": mode, "round": round_, "position": round_, "warmup": 1, "stamps": stamps} | fields)


def timed(collector: Collector, mode: str, step_s: float, *, job: int = 0, rounds: int = 6) -> None:
    """Blocks of equal steps on both ranks."""
    for round_ in range(rounds):
        stamps = [round_ * 100 + i * step_s for i in range(30)]
        for rank in range(2):
            collector.take(job, rank, block(mode, stamps, round_))


class Clock:
    """A clock that a test moves."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s
