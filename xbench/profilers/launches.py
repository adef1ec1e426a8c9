"""Host time of launches: of one collective, of one gradient's hook, and of a whole step.

On a GPU the host only launches, and the device works later. Where the host is ahead, its time costs the step nothing.
Where the device waits for the host, the step is *launch-bound*, and every further launch makes it longer.

- **launch**: all-reduces of one element, launched one at a time. So few are launched that no queue of the device is
  ever full, or the host would wait in a launch.
- **hook**: `engine_cost.hook_s`.
- **step**: steps without communication. Each begins with an idle device, and is over for the host when all its work is
  launched. If a step has more work than a queue holds, the host waits for part of it, and its time is an upper limit.
  If the step itself waits for the device (`loss.item()`), both times are the same, and launches delay it as well.

The first two are measured in the same way on CPUs. There a step has no launches of its own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from xbench.planning.contention import is_launch_bound
from xbench.records import Contention
from xbench.schedules.bucket import start_all_reduce

LAUNCHES = 50
STEPS = 8


@dataclass(frozen=True)
class HostCost:
    """Host times [s] of one rank: of a launch, of a gradient's hook, and of a step without communication."""

    launch_s: float
    hook_s: float
    step_s: float


def launch_s(group: dist.ProcessGroup | None, device: torch.device) -> float:
    """Median host time [s] of the launch of an all-reduce. Every rank of `group` must call it together."""
    token = torch.zeros(1, device=device)
    dist.all_reduce(token, group=group)  # waits for all ranks
    took_s: list[float] = []
    for _ in range(LAUNCHES):
        begin_s = time.perf_counter()
        work = start_all_reduce(token, group)
        took_s.append(time.perf_counter() - begin_s)
        work.wait()
    return statistics.median(took_s)


def host_step_s(
    step: Callable[[], object],
    idle: Callable[[], object],
    note: Callable[[str], object],
    now: Callable[[], float] = time.perf_counter,
) -> float:
    """Median time [s] of `step()`, each after `idle()`, which waits for the device. One more step is the warm-up."""
    took_s: list[float] = []
    for number in range(STEPS + 1):
        note(f"launching a step, {number + 1} of {STEPS + 1}")
        idle()
        begin_s = now()
        step()
        took_s.append(now() - begin_s)
    idle()
    return statistics.median(took_s[1:])


def summarise_launches(ranks: Sequence[HostCost], device_step_s: float) -> Contention:
    """One record of all ranks: the slowest rank's times, and whether the step is launch-bound.

    `device_step_s` [s] is the time of the same step on the device. No slow-down of computation and collectives by each
    other was measured, so there are no points.
    """
    step_s = max(rank.step_s for rank in ranks)
    return Contention(
        launch_s=max(rank.launch_s for rank in ranks),
        hook_s=max(rank.hook_s for rank in ranks),
        host_step_s=step_s,
        device_step_s=device_step_s,
        launch_bound=is_launch_bound(step_s, device_step_s),
        points=[],
    )
