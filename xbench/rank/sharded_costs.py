"""Costs of torch's sharded modes, in a rank's profile: of their collectives and of the host, and plans of their units.

The collectives are those beside the all-reduce of other modes. The all-reduce of a mode that waits for each one, over
Gloo, is measured apart: its ranks start one after the other.

Those of a mode in groups of ranks are measured in all groups at once, as they run in its steps: the groups
share links. The times are those of the groups of rank 0. The all-reduce between groups is of a shard, so its sizes end
at one N-th of the gradients.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from xbench.errors import UsageError
from xbench.modes import ModeInfo, mode_info
from xbench.planning.cost import fit
from xbench.planning.plans import Planner
from xbench.planning.sharded_step import GATHERED, Sharded, cost_name
from xbench.planning.unit_plan import Units, plan_units
from xbench.profilers.budget import SHARE
from xbench.profilers.collectives import measure_collective, sizes
from xbench.profilers.summary import clocks, cost_points
from xbench.profilers.unit_cost import TURNS, WARMUP, measure_unit_cost, silent_group
from xbench.profilers.unit_waits import share_cores, unit_waits
from xbench.rank.events import Remarked
from xbench.rank.parity_checker import gathered
from xbench.rank.rank_errors import message_of
from xbench.rank.session import Session
from xbench.records import CostModel, Layer, UnitCost
from xbench.registry import imported
from xbench.schedules.sharded import groups_here, shard_ranks_here
from xbench.schedules.twin import units_of
from xbench.text import and_of
from xbench.torch_compile import plain_name
from xbench.units import parse_bytes

UNITS_S, QUICK_UNITS_S = 12.0, 1.0
"""Time for the steps that measure the units of a mode [s]."""

DIVISIONS = 3
"""Kinds of steps of a turn: without the mode, with a unit a block, and with one unit."""

LEAST_STEPS, MOST_STEPS = 2, 10
"""Steps that count in a turn."""

SLOW_STEP_S = 2.0
"""Steps of this time and more take one turn. The host's time is a small part of them [s]."""


@dataclass(frozen=True)
class _Link:
    """A collective to measure: this rank's group, the ranks of rank 0's, and the largest size [B]."""

    collective: str
    group: dist.ProcessGroup
    ranks: range
    most_bytes: int


def halves_here(session: Session, mode: ModeInfo) -> tuple[str, str] | None:
    """Return the halves of a mode's all-reduces if they travel as collectives of their own, over real NCCL."""
    return mode.halves if session.run.backend == "nccl" and session.program.emulated is None else None


def other_costs(session: Session, grad_bytes: int, seconds_budget: float) -> dict[str, CostModel]:
    """Measure the collectives that modes of this run use, by `cost_name`, each for so long [s]."""
    costs: dict[str, CostModel] = {}
    for name, link in dict(_links(session, grad_bytes)).items():
        measured = measure_collective(
            link.collective,
            sizes(link.most_bytes),
            session.device,
            link.group,
            seconds_budget=seconds_budget,
            clock=session.clock,
            note=session.note,
        )
        everyone = [one for rank, one in enumerate(gathered(measured)) if rank in link.ranks]
        cost = fit(cost_points(everyone, means=True), backend=dist.get_backend(), world_size=len(link.ranks))
        costs[name] = cost.model_copy(update={"collective": link.collective, **clocks(everyone)})
    return costs


def unit_costs(session: Session, raws: Sequence[dict[str, Any]], bare_s: float) -> dict[str, UnitCost]:
    """Measure the host's time for units, by mode, on CPUs: that of the slowest rank. On a GPU the host is ahead.

    A unit's time includes the waits of ranks for each other, from their profiles `raws`. `bare_s`: the step without a
    mode [s]. A mode that refuses the model is left out. So is one that fails on the values of a group that sends
    nothing, with a remark. The model is as in the beginning afterwards.
    """
    found: dict[str, UnitCost] = {}
    modes = [mode_info(mode.carrier).units_of for mode in session.run.modes] if session.device.type == "cpu" else []
    names = list(dict.fromkeys(name for name in modes if name is not None))
    if not names:
        return found
    budget_s = SHARE * (QUICK_UNITS_S if session.run.effort.is_quick else UNITS_S)
    turns = TURNS if bare_s < SLOW_STEP_S else 1
    steps = max(LEAST_STEPS, min(MOST_STEPS, int(budget_s / bare_s / DIVISIONS / turns) - WARMUP))
    try:
        silent = silent_group()
    except ImportError:  # it is no public part of torch
        return found
    workload = session.workload
    scale = workload.scaler.state_dict() if workload.scaler is not None else {}
    for name in names:
        session.note(f"measuring units of {name}")
        info = mode_info(name)
        cost: tuple[float, float] | str
        try:
            schedule = imported(info.schedule)()
            cost = measure_unit_cost(schedule, silent, workload, steps, turns=turns, note=session.note)
        except UsageError:  # its own steps say why
            cost = ""
        except Exception as error:
            cost = message_of(error)
        session.snapshot.restore(workload)
        everyone = gathered(cost)
        refused = [one for one in everyone if isinstance(one, str)]
        if not refused:
            unit_s, tensor_s = (max(column) for column in zip(*everyone, strict=True))
            wait_s = _wait_s(session, raws, "all_gather" in info.collectives)
            found[name] = UnitCost(unit_s=unit_s + wait_s, tensor_s=tensor_s)
        elif session.rank == 0 and refused[0]:
            told = and_of([mode.text for mode in session.run.modes if mode_info(mode.carrier).units_of == name])
            session.journal.write(
                Remarked(message=f"predictions of {told} lack the host's time for units: {refused[0]}")
            )
    if workload.scaler is not None:
        workload.scaler.load_state_dict(scale)
    dist.destroy_process_group(silent)
    return found


def _wait_s(session: Session, raws: Sequence[dict[str, Any]], gathers: bool) -> float:
    """Time for which ranks wait for each other at a unit [s]; in the forward pass only where units are gathered.

    0 where ranks share cores.
    """
    if share_cores(gathered((socket.gethostname(), frozenset(os.sched_getaffinity(0))))):
        return 0.0
    try:
        units = units_of(session.workload.model)
    except UsageError:  # the modes that shard say so
        return 0.0
    waits = unit_waits(raws, units)
    return (waits.backward_s + (waits.forward_s if gathers else 0.0)) / len(units)


def _links(session: Session, grad_bytes: int) -> Iterator[tuple[str, _Link]]:
    """The collectives to measure, by name."""
    world, size = dist.group.WORLD, dist.get_world_size()
    assert world is not None
    for mode in session.run.modes:
        info = mode_info(mode.carrier)
        if info.ranks is None:
            for name in (*info.collectives, *(halves_here(session, info) or ())):
                if name != "all_reduce" or session.run.backend == "gloo":  # elsewhere it is that of all modes
                    yield name, _Link(name, world, range(size), grad_bytes)
        else:
            ranks = shard_ranks_here(mode.text, dict(mode.options))
            within, between = groups_here(session.device.type, ranks)
            for name in info.collectives:
                if name == "all_reduce":
                    link = _Link(name, between, range(0, size, ranks), -(-grad_bytes // ranks))
                else:
                    link = _Link(name, within, range(ranks), grad_bytes)
                yield cost_name(name, ranks), link


def units_by_mode(
    session: Session,
    planner: Planner,
    layers: Sequence[Layer],
    costs: Mapping[str, CostModel],
    unit_costs: Mapping[str, UnitCost],
) -> dict[str, Units]:
    """Return the units of each mode of this run that plans them. Every rank plans the same; rank 0 says so.

    `costs`: cost models of collectives by name. `unit_costs`: by mode. A model that `fully_shard` cannot wrap has no
    units: its modes report that when they are attached.
    """
    modes = [mode for mode in session.run.modes if mode_info(mode.name).plans_units]
    found: dict[str, Units] = {}
    if not modes or planner.cost is None:
        return found
    model = session.workload.model
    nbytes = {plain_name(name): p.numel() * p.element_size() for name, p in model.named_parameters()}
    with suppress(UsageError):
        apart = units_of(model)
        waits, workers = session.run.backend == "gloo", dist.get_world_size()
        kept = {unit: sum(nbytes[name] for name in names) for unit, names in apart.items()}
        for mode in modes:
            limit, unit = dict(mode.options).get(GATHERED), unit_costs.get(mode_info(mode.name).units_of or "")
            inputs = Sharded(planner, layers, apart, costs, workers, waits=waits, unit=unit)
            plan = plan_units(inputs, kept, parse_bytes(limit) if limit is not None else None)
            found[mode.text] = plan.units if plan is not None else []
            if plan is not None and session.rank == 0:
                session.journal.write(Remarked(message=plan.sentence(mode.text)))
    return found
