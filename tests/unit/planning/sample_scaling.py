"""A step small enough to be worked out by hand, as a model, a profile and a comparison."""

from __future__ import annotations

from planning_cases import layer, line, step_times

from xbench.planning.step import StepModel
from xbench.records import (
    Comparison,
    CostPoint,
    Environment,
    Estimate,
    FabricRecord,
    Job,
    ModeResult,
    Profile,
    WorkloadRecord,
)
from xbench.spec import FabricSpec, ModeSpec, RunSpec, WorkloadSpec

POINTS = [CostPoint(nbytes=n, transfer_s=0.2, ci95=(0.2, 0.2), wait_s=0.0, repetitions=3) for n in (8, 1024**2)]
COST = line(0.2, 0.0).model_copy(update={"points": POINTS})
_SPEC = FabricSpec(name="shaped", hosts=2, rate="1gbit")
_WORKLOAD = WorkloadRecord(
    spec=WorkloadSpec(name="tiny"), title="tiny", parameters=3, tensors=2, grad_bytes=12, batch_size=5, input="numbers"
)
_JOB = {
    "workload": _WORKLOAD, "layers": [layer("late", [(4, 1.0)], 0.5, 1.0), layer("early", [(8, 2.0)], 0.5, 1.0)],
    "step": step_times(3.0, forward_s=1.0, backward_s=2.0, optimizer_s=0.0),
}  # fmt: skip
_MEASURED = {
    "created": "2026-03-01T12:00:00Z", "complete": True, "cost_model": COST,
    "environment": Environment(
        hostname="h", cpu="c", cores=2, memory_bytes=1, python="3.11", torch="2.15.0", device="cpu", device_count=0,
        xbench="0.1.0", commit=None,
    ),
    "fabric": FabricRecord(
        name="shaped", spec="shaped:hosts=2,rate=1gbit", label="real", backend="gloo", hosts=2, ranks_per_host=1,
        world_size=2, rate_bps=1e9,
    ),
}  # fmt: skip


def step() -> StepModel:
    """Forward 1 s, backward 2 s; 4 bytes are ready after 1 s of backward, 8 at its end."""
    return StepModel.of(_JOB["layers"], _JOB["step"])  # type: ignore[arg-type]


def profile() -> Profile:
    """`step` as a profile."""
    spec = RunSpec(kind="profile", workloads=(_WORKLOAD.spec,), fabric=_SPEC)
    return Profile(command="xbench profile tiny", spec=spec, **_JOB, **_MEASURED)  # type: ignore[arg-type]


def comparison(errors: dict[str, float]) -> Comparison:
    """`step` as a comparison in which each mode's prediction was off by so much."""
    spec = RunSpec(
        kind="comparison", workloads=(_WORKLOAD.spec,), fabric=_SPEC,
        modes=tuple(ModeSpec(text=name, name=name, carrier=name) for name in errors),
    )  # fmt: skip
    modes = {
        name: ModeResult(
            mode=name, status="ok", label="real", prediction_error=error, step_s=Estimate(median=3.0, ci95=(3.0, 3.0))
        )
        for name, error in errors.items()
    }
    return Comparison(
        command="xbench compare tiny", spec=spec, reference="ddp", modes=modes, jobs=[Job(**_JOB)],  # type: ignore[arg-type]
        **_MEASURED,  # type: ignore[arg-type]
    )  # fmt: skip
