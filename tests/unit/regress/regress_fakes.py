"""Trees that answer orders without launching anything, on a clock that only they move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xbench.records import Check, Environment, SideName, Suite, WorkloadRecord
from xbench.regress.protocol import Block, Counts, JobRequest, JobResult, PlannedFigures
from xbench.spec import WorkloadSpec

LAUNCH_S = 5.0
MACHINE = Environment(
    hostname="here", cpu="a processor", cores=2, memory_bytes=2**33, python="3.11.7", torch="2.15.0", device="cpu",
    device_count=0, xbench="0.1.0", commit=None,
)  # fmt: skip
WORKLOAD = WorkloadRecord(
    spec=WorkloadSpec(name="resnet18", batch_size=2), title="resnet18", parameters=10, tensors=2, grad_bytes=40,
    batch_size=2, input="images",
)  # fmt: skip


def check(name: str = "step", *, modes: Sequence[str] = ("ddp",), metrics: Sequence[str] = ("step_time",)) -> Check:
    return Check.model_validate({"name": name, "workload": "resnet18", "modes": modes, "metrics": metrics})


def suite(*checks: Check, **fields: object) -> Suite:
    return Suite.model_validate({"checks": checks or (check(),), **fields})


class Clock:
    """Seconds that pass when somebody says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class FakeTree:
    """Takes `step_s` a step of each mode, `LAUNCH_S` a launch; `trouble` by launch number is an answer's error."""

    def __init__(
        self,
        name: SideName,
        clock: Clock,
        log: list[str],
        *,
        step_s: Mapping[str, float] | None = None,
        buckets: int = 4,
        trouble: Mapping[int, str] | None = None,
        takes_turns: bool = False,
    ) -> None:
        self.name: SideName = name
        self.title = f"the {name} tree"
        self.orders: list[JobRequest] = []
        self._clock, self._log = clock, log
        self._step_s, self._buckets = step_s or {}, buckets
        self._trouble = trouble or {}
        self._takes_turns = takes_turns
        self._timed = 0

    def begin(self, order: JobRequest) -> FakeBegun:
        self._log.append(f"{self.name} begins")
        return FakeBegun(self, order)

    def carry_out(self, order: JobRequest, longest_s: float) -> JobResult:
        self.orders.append(order)
        self._log.append(f"{self.name} {order.kind}")
        self._clock.now_s += LAUNCH_S
        if order.kind == "look":
            return JobResult(
                xbench="0.1.0",
                environment=MACHINE,
                workload=WORKLOAD,
                resolved={"by": self.name},
                takes_turns=self._takes_turns,
                planned={
                    mode: PlannedFigures(buckets=self._buckets, planned_step_s=0.2, simulated_step_s=0.3)
                    for mode in order.modes
                },
                counted={mode: Counts(collectives=self._buckets, wire_bytes=40) for mode in order.modes},
            )
        assert order.resolved == {"by": self.name}
        self._timed += 1
        blocks = [
            Block(mode=mode, round=turn, steps_s=[self._step_s.get(mode, 0.1)] * order.steps)
            for turn in range(order.rounds * order.turns)
            for mode in order.modes
        ]
        error = self._trouble.get(self._timed)  # after blocks that were complete
        return JobResult(xbench="0.1.0", blocks=blocks, samples_per_step=4, error=error)


class FakeBegun:
    """An order that is carried out when its answer is asked for."""

    alive = False

    def __init__(self, tree: FakeTree, order: JobRequest) -> None:
        self._tree, self._order = tree, order

    def answer(self, longest_s: float) -> JobResult:
        return self._tree.carry_out(self._order, longest_s)

    def __enter__(self) -> FakeBegun:
        return self

    def __exit__(self, *_: object) -> None:
        self._tree._log.append(f"{self._tree.name} is over")
