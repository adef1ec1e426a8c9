"""Plans of the units of modes that wrap several blocks together, from a rank's profile."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import torch.distributed as dist

from xbench.errors import UsageError
from xbench.modes import mode_info
from xbench.planning.plans import Planner
from xbench.planning.sharded_step import GATHERED, Sharded
from xbench.planning.unit_plan import Units, plan_units
from xbench.rank.events import Remarked
from xbench.rank.session import Session
from xbench.records import CostModel, Layer, UnitCost
from xbench.schedules.twin import units_of
from xbench.torch_compile import plain_name
from xbench.units import parse_bytes


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
    with contextlib.suppress(UsageError):
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
