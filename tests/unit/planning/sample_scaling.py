"""A step small enough to be worked out by hand, as a model, a profile and a comparison."""

from __future__ import annotations

from xbench.planning.step import Gradient, StepModel
from xbench.records import (
    Comparison,
    CostModel,
    CostPoint,
    Environment,
    Estimate,
    FabricRecord,
    Job,
    Layer,
    ModeResult,
    Profile,
    StepTimes,
    Tensor,
    WorkloadRecord,
)
from xbench.spec import FabricSpec, ModeSpec, RunSpec, WorkloadSpec

COST = CostModel(
    backend="gloo", world_size=2, alpha_s=0.2, beta_s_per_byte=0.0, alpha_ci95=(0.1, 0.3), beta_ci95=(0.0, 0.0),
    max_relative_residual=0.0,
    points=[CostPoint(nbytes=n, transfer_s=0.2, ci95=(0.2, 0.2), wait_s=0.0, repetitions=3) for n in (8, 1024**2)],
)  # fmt: skip
_ENVIRONMENT = Environment(
    hostname="h", cpu="c", cores=2, memory_bytes=1, python="3.11", torch="2.15.0", device="cpu", device_count=0,
    xbench="0.1.0", commit=None,
)  # fmt: skip
_SPEC = FabricSpec(name="shaped", hosts=2, rate="1gbit")
_FABRIC = FabricRecord(
    name="shaped", spec="shaped:hosts=2,rate=1gbit", label="real", backend="gloo", hosts=2, ranks_per_host=1,
    world_size=2, rate_bps=1e9,
)  # fmt: skip
_WORKLOAD = WorkloadRecord(
    spec=WorkloadSpec(name="tiny"), title="tiny", parameters=3, tensors=2, grad_bytes=12, batch_size=5, input="numbers"
)
_TIMES = StepTimes(
    forward_s=1.0, backward_s=2.0, optimizer_s=0.0, step_s=3.0, step_ci95=(3.0, 3.0), uninstrumented_step_s=3.0,
    uninstrumented_ci95=(3.0, 3.0), overhead_ratio=0.0, overhead_ci95=(0.0, 0.0), steps=3, warmup_steps=0,
)  # fmt: skip


def step() -> StepModel:
    """Forward 1 s, backward 2 s; 4 bytes are ready after 1 s of backward, 8 at its end."""
    return StepModel((Gradient("late", 4, 1.0, elements=1), Gradient("early", 8, 2.0, elements=2)), 1.0, 2.0, 0.0)


def _layers() -> list[Layer]:
    return [
        Layer(
            name=g.name, kind="Linear", parameters=g.elements, grad_bytes=g.nbytes, forward_s=0.5, backward_s=1.0,
            ready_s=g.ready_s, share=0.5,
            tensors=[Tensor(name=g.name, elements=g.elements, bytes=g.nbytes, dtype="float32", ready_s=g.ready_s)],
        )
        for g in step().gradients
    ]  # fmt: skip


def profile() -> Profile:
    """`step` as a profile."""
    return Profile(
        created="2026-03-01T12:00:00Z", command="xbench profile tiny",
        spec=RunSpec(kind="profile", workloads=(_WORKLOAD.spec,), fabric=_SPEC),
        environment=_ENVIRONMENT, fabric=_FABRIC, complete=True, workload=_WORKLOAD, layers=_layers(), step=_TIMES,
        cost_model=COST,
    )  # fmt: skip


def comparison(errors: dict[str, float]) -> Comparison:
    """`step` as a comparison in which each mode's prediction was off by so much."""
    return Comparison(
        created="2026-03-01T12:00:00Z", command="xbench compare tiny",
        spec=RunSpec(
            kind="comparison", workloads=(_WORKLOAD.spec,), fabric=_SPEC,
            modes=tuple(ModeSpec(text=name, name=name, carrier=name) for name in errors),
        ),
        environment=_ENVIRONMENT, fabric=_FABRIC, complete=True, reference="ddp",
        modes={
            name: ModeResult(
                mode=name, status="ok", label="real", prediction_error=error,
                step_s=Estimate(median=3.0, ci95=(3.0, 3.0)),
            )
            for name, error in errors.items()
        },
        jobs=[Job(workload=_WORKLOAD, step=_TIMES, layers=_layers())], cost_model=COST,
    )  # fmt: skip
