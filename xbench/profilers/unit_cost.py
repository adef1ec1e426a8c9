"""Time that a sharded mode costs besides its collectives: of the host for a unit and a tensor, and waits of ranks.

docs/how-it-measures.md says what is measured, and what predictions count by themselves and is left out. With `apart`
for what a unit for each block adds to a step without a mode, and `joined` for what one unit for all blocks adds to it:

    unit = (apart − joined) / (units apart − units joined), at most apart / (units apart)
    tensor = (apart − units apart · unit) / tensors

Both are at least 0. A model without blocks has one unit, and all of its time counts for its tensors.

A mode that waits for each collective ends every unit at the slowest rank's time for it. With t(r, u) for the time of
rank r in unit u of one pass, from steps without communication, the ranks wait for

    Σ over u of max over r of t(r, u)  −  max over r of Σ over u of t(r, u)

longer than if they met at the end of the pass alone. Ranks that share a core take turns on it, at whatever unit they
are. The formula does not hold for them: a rank that waits leaves the core to the other one.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from xbench.model_blocks import blocks_of
from xbench.profilers.layers import bare_step
from xbench.schedules.base import AttachConfig, Schedule
from xbench.schedules.torch_calls import SHARDED, calls_timed
from xbench.torch_compile import plain_name
from xbench.workloads.workload import Workload

TURNS = 3
"""Turns of the steps without the mode, with a unit for each block, and with one unit."""

WARMUP = 2
"""Steps after attaching that do not count."""


def silent_group() -> dist.ProcessGroup:
    """A group of all ranks that sends nothing. Every rank must call it together. It is for timing alone."""
    import torch.testing._internal.distributed.fake_pg  # noqa: F401  registers the backend

    made: Any = dist.new_group(backend="fake")
    group: dist.ProcessGroup = made
    return group


def measure_unit_cost(
    schedule: Schedule,
    group: dist.ProcessGroup,
    workload: Workload,
    steps: int,
    *,
    turns: int = TURNS,
    note: Callable[[str], object] = lambda _: None,
) -> tuple[float, float]:
    """This rank's cost of a unit and of a tensor [s].

    `group` sends nothing, so the values of the model have no meaning afterwards. `steps`: how many count in a turn.
    `note` is called with a text before each step. Raises UsageError as `schedule` does, and whatever the model raises
    on such values.
    """
    setup = AttachConfig(workload.model, workload.optimizer, group=group, wait="step")
    blocks = list(blocks_of(workload.model))
    more_s: list[list[float]] = []
    units: list[int] = []
    for turn in range(1, turns + 1):
        noted = partial(note, f"measuring units, turn {turn} of {turns}")
        alone = _step_times(workload, steps, noted)
        more_s.append([])
        units = []
        for division in (None, [blocks] if blocks else None):
            handle = schedule.attach(replace(setup, units=division))
            try:
                named = handle.model.named_parameters()
                trained = {plain_name(name) for name, parameter in named if parameter.requires_grad}
                # predictions know no units that train nothing
                units.append(sum(not trained.isdisjoint(names) for names in (handle.units or {}).values()))
                others_s = alone.update_s * (1.0 - _own_share(handle.model))
                attached = workload.under(handle.model, handle.no_sync, handle.synchronize)
                more_s[-1].append(_step_times(attached, steps, noted).step_s - (alone.step_s - others_s))
            finally:
                handle.detach()  # after every error: no rank waits for another one in this group
    apart_s, joined_s = (max(0.0, statistics.median(turns)) for turns in zip(*more_s, strict=True))
    apart, joined = units
    unit_s = max(0.0, apart_s - joined_s) / (apart - joined) if apart > joined else 0.0
    unit_s = min(unit_s, apart_s / apart)
    return unit_s, (apart_s - apart * unit_s) / sum(p.requires_grad for p in workload.model.parameters())


def _own_share(model: nn.Module) -> float:
    """Share of the trained elements that this rank updates."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    own = sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in trained)
    return own / sum(parameter.numel() for parameter in trained)


@dataclass(frozen=True)
class _StepTimes:
    """Median times [s]: of a step without its collectives, and of its update."""

    step_s: float
    update_s: float


def _step_times(workload: Workload, steps: int, note: Callable[[], object]) -> _StepTimes:
    """Time steps of a workload, the first few of which do not count."""
    took_s: list[float] = []
    update_begins_s: list[float] = []
    ends_s: list[float] = []
    with calls_timed(SHARDED) as in_calls_s:
        for _ in range(WARMUP + steps):
            note()
            calls_s, begin_s = in_calls_s(), time.perf_counter()
            bare_step(workload, lambda: update_begins_s.append(time.perf_counter()))
            ends_s.append(time.perf_counter())
            took_s.append(ends_s[-1] - begin_s - (in_calls_s() - calls_s))
    updates_s = [end_s - begin_s for begin_s, end_s in zip(update_begins_s, ends_s, strict=True)]
    return _StepTimes(statistics.median(took_s[WARMUP:]), statistics.median(updates_s[WARMUP:]))


class Waits(NamedTuple):
    """The waits of a step [s], by pass."""

    forward_s: float
    backward_s: float


def share_cores(places: Iterable[tuple[str, frozenset[int]]]) -> bool:
    """True if a set of cores has more ranks than cores. `places`: each rank's machine and cores.

    Sets that overlap only in part are not compared.
    """
    return any(ranks > len(cores) for (_, cores), ranks in Counter(places).items())


def unit_waits(raws: Sequence[dict[str, Any]], units: Mapping[str, Sequence[str]]) -> Waits:
    """The median waits over the steps after the warm-up.

    `raws`: the profiles of all ranks (`StepProfile.raw`). `units`: parameter names by unit.
    """
    owner = {name: unit for unit, names in units.items() for name in names}
    layers = raws[0]["layers"]
    trained = [at for at, layer in enumerate(layers) if layer["tensors"]]
    unit_of = {at: owner.get(layers[at]["tensors"][0]["name"], "") for at in trained}
    runs = [list(run) for _, run in itertools.groupby(trained, key=unit_of.__getitem__)]
    steps = range(max(raw["warmup"] for raw in raws), len(raws[0]["steps"]["step_s"]))
    return Waits(
        statistics.median(_wait_s([_forward_s(raw, runs, step) for raw in raws]) for step in steps),
        statistics.median(_wait_s([_backward_s(raw, runs, step) for raw in raws]) for step in steps),
    )


def _wait_s(ranks: Sequence[Sequence[float]]) -> float:
    """The waits of one pass: `ranks` has each rank's time by unit."""
    apart_s: float = sum(max(times_s) for times_s in zip(*ranks, strict=True))
    return apart_s - max(sum(times_s) for times_s in ranks)


def _forward_s(raw: dict[str, Any], runs: Sequence[Sequence[int]], step: int) -> list[float]:
    return [sum(raw["layers"][at]["forward_s"][step] for at in run) for run in runs]


def _backward_s(raw: dict[str, Any], runs: Sequence[Sequence[int]], step: int) -> list[float]:
    """The time between the last gradients of one unit and those of the next."""
    found, end_s = [], 0.0
    for run in reversed(runs):
        ready_s = [tensor["ready_s"][step] for at in run for tensor in raw["layers"][at]["tensors"]]
        last_s = max((time_s for time_s in ready_s if time_s is not None), default=end_s)
        found.append(max(0.0, last_s - end_s))
        end_s = max(end_s, last_s)
    return found
