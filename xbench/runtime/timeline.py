"""A rank's timeline phase: after all blocks of the first launch, a few steps of each single-job mode are recorded.

Every rank records, so that ranks stay alike, and rank 0 writes the recorded step of median duration to its journal. No
block comes after these phases in a launch, so instruments disturb no sample. What cannot be recorded is a warning, and
never the end of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from xbench.profilers.timeline import TimelineRecorder
from xbench.schedules import puts_off
from xbench.schedules.base import Handle
from xbench.spec import ModeSpec
from xbench.workloads.build import Workload

if TYPE_CHECKING:
    from xbench.runtime.worker import Rank

STEPS = 3
SLOW_STEP_S = 5.0
"""Of steps that are predicted to be longer, one is recorded."""

TOO_SLOW_STEP_S = 20.0
"""Of steps that are predicted to be longer, none is."""


@dataclass(frozen=True)
class _Attached:
    """The workload as the recorder wants it: its model under a schedule."""

    workload: Workload
    handle: Handle

    @property
    def model(self) -> nn.Module:
        return self.handle.model

    @property
    def optimizer(self) -> Optimizer:
        return self.workload.optimizer

    def forward_loss(self) -> Tensor:
        return self.workload.forward_loss(self.handle.model)


def steps_to_record(predicted_s: float) -> int:
    """How many steps of this length [s] are recorded: an odd number, for the median is one of them; or none."""
    if predicted_s > TOO_SLOW_STEP_S:
        return 0
    return 1 if predicted_s > SLOW_STEP_S else STEPS


def record_timeline(rank: Rank, mode: ModeSpec) -> None:
    """Attach anew, warm up, record, detach, and write the timeline. Every rank of the job calls it together."""
    plan = rank.plans[rank.job]
    steps = steps_to_record(plan.step_s.get(mode.carrier, plan.compute_s))
    if steps == 0:
        return
    what = f"timeline of {mode.text}"
    workload = rank.workload
    recording = TimelineRecorder(workload.model, rank.clock, in_order=dist.get_backend() == "nccl")
    with recording as recorder, rank.attach(mode) as handle:
        watched = _agreed(rank, mode, lambda: handle.watch(recorder.watch))
        handle.watch_waits(recorder.waiting)
        if watched:
            # The first step of an attached schedule is unlike the others: DDP rebuilds its buckets after it.
            rank.train(handle, rank.run.effort.warmup_steps if steps > 1 else 1, f"{what}, warm-up", lambda: None)
            for step in range(steps):
                rank.note(f"{what}, step {step + 1}")
                recorder.run_step(_Attached(workload, handle))
            rank.device_idle()
            rank.clock.flush()
    workload.optimizer.zero_grad(set_to_none=True)
    if watched and rank.rank == 0:
        _write(rank, mode, recorder)
    rank.clock.reset()


def _agreed(rank: Rank, mode: ModeSpec, begin: Callable[[], bool]) -> bool:
    """Whether all ranks could begin: one that trained on alone would wait for the others for ever."""
    watched = False
    try:
        watched = begin()
    except Exception as error:
        _warn(rank, mode, error)
    everyone = torch.tensor([float(watched)], device=rank.device)
    dist.all_reduce(everyone, op=dist.ReduceOp.MIN)
    return bool(everyone.item())


def _write(rank: Rank, mode: ModeSpec, recorder: TimelineRecorder) -> None:
    try:
        recorded = recorder.lanes()
        if puts_off(rank.plans[rank.job].carrier_of(mode)):
            recorded = recorded[1:] or recorded  # what the first of them waits for was sent before anybody watched
        lanes = sorted(recorded, key=lambda step: step.step_s)
        median = lanes[len(lanes) // 2]
    except Exception as error:
        _warn(rank, mode, error)
        return
    rank.journal.write(
        "timeline",
        mode=mode.text,
        compute=[part.model_dump() for part in median.compute],
        communication=[part.model_dump() for part in median.communication],
    )


def _warn(rank: Rank, mode: ModeSpec, error: Exception) -> None:
    rank.journal.write("warning", message=f"no measured timeline of {mode.text}: {error}")
