"""`xbench.attach`: put a schedule under a training loop that already exists.

plan = xbench.load_result("results/runs/.../record.json")
with xbench.attach(model, optimizer, schedule="optimal", plan=plan) as handle:
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = criterion(handle.model(inputs), targets)
        loss.backward()
        optimizer.step()
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist
from torch.nn import Module
from torch.optim import Optimizer

from xbench.errors import SpecError, unknown
from xbench.records import Comparison, Plan, Profile, load_measured
from xbench.schedules import MODES
from xbench.schedules.base import Handle, Schedule, Setup
from xbench.schedules.engine import Wait

PlanSource = Plan | Profile | Comparison | str | Path | Sequence[Sequence[str]]


def attach(
    model: Module,
    optimizer: Optimizer | None = None,
    *,
    schedule: str = "wfbp",
    plan: PlanSource | None = None,
    process_group: dist.ProcessGroup | None = None,
    wait: Wait = "backward",
    unused_parameters: bool = False,
) -> Handle:
    """Send the model's gradients by `schedule` from now on, until the handle is detached.

    `schedule` is a single-job mode of `xbench modes`. `plan` holds the buckets: a record of `xbench profile` or
    `xbench compare` (or its path), one of its plans, or lists of parameter names in launch order; `mgwfbp`, `optimal`
    and `ddp-tuned` need one, `wfbp` and `single` do not. With `wait="backward"` gradients are averaged when
    `loss.backward()` returns; with `wait="step"` they may travel until `optimizer.step()`, and `handle.synchronize()`
    must come before anything else that reads them (clipping, GradScaler). `unused_parameters=True` tells the DDP
    schedules to look for parameters without a gradient; ours always cope with them.

    The ranks must have equal parameters already, as after loading one checkpoint or seeding alike. Averages are exact
    means over ranks. Raises SpecError for an unknown schedule or a plan that does not fit the model, UsageError for a
    model that the schedule cannot serve, RecordError for a broken file.
    """
    singles = [entry.name for entry in MODES if not entry.facts.get("paired")]
    if schedule not in singles:
        raise unknown("schedule", schedule, singles, listing="xbench modes")
    kind: type[Schedule] = MODES.load(schedule)  # type: ignore[assignment]
    buckets = buckets_of(plan, schedule)
    if kind.needs_plan and buckets is None:
        raise SpecError(
            f"schedule {schedule!r} is made from measurements and needs a plan",
            hint="xbench profile WORKLOAD writes one: attach(..., plan='results/runs/.../record.json')",
        )
    return kind().attach(Setup(model, optimizer, buckets, process_group, wait, unused_parameters))


def buckets_of(plan: PlanSource | None, schedule: str) -> Sequence[Sequence[str]] | None:
    """The parameter names by bucket that `plan` has for `schedule`. Raises SpecError when it has none."""
    if plan is None:
        return None
    if isinstance(plan, (str, Path)):
        plan = load_measured(Path(plan))
    if isinstance(plan, (Profile, Comparison)):
        plans = plan.plans if isinstance(plan, Profile) else plan.jobs[0].plans
        if schedule not in plans:
            raise SpecError(
                f"the record has no plan for {schedule!r}",
                hint=f"it has {', '.join(plans) or 'none'}: was it of one rank?",
            )
        plan = plans[schedule]
    return plan.buckets if isinstance(plan, Plan) else plan
