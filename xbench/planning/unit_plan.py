"""Units of `auto:shard`: neighbouring blocks that one collective gathers, for the shortest predicted step of `fsdp`.

Wrapping each block saves most memory and takes most collectives, each with a latency. A plan divides the blocks, in the
order of the forward pass, into contiguous units. The root stays a unit of its own. docs/planner.md has both searches:
over Gloo the step is a sum over units, and dynamic programming is exact; on a stream divisions are simulated.

People shard to save memory, so a unit has at most `limit_bytes` of parameters: by default twice those of the largest
block. While torch gathers one unit ahead, two are there at once. Predictions have errors. Where the best division is
predicted to save less than MIN_GAIN of the step, the plan is one unit a block, as in `fsdp`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from xbench.planning.auto import CutSearch
from xbench.planning.sharded_step import Sharded, forward_order, fsdp
from xbench.planning.step import Gradient
from xbench.text import counted
from xbench.units import format_bytes, format_percent, format_seconds

MIN_GAIN = 0.02
"""Least predicted gain, as a share of the step of one unit a block. A comparison calls smaller differences equal."""

BLOCKS_A_UNIT = 2
"""Default limit of a unit, in times of the largest block."""

MAX_EXHAUSTIVE = 12
"""Most blocks whose divisions are all simulated: 2048."""

MAX_TRIALS = 500

SEPARATOR = ", "
"""Stands between the blocks in the name of a unit, as in torch's own names."""

Units = list[list[str]]
"""Paths of the blocks of each unit."""


@dataclass(frozen=True)
class UnitPlan:
    """Units in forward order, their predicted step, and that of one unit a block [s].

    `unit_bytes` and `block_bytes`: parameters of the largest unit and of the largest block. `limit_bytes`: the most
    that a unit of several blocks may have.
    """

    units: Units
    step_s: float
    apart_s: float
    unit_bytes: int
    block_bytes: int
    limit_bytes: int

    def sentence(self, mode: str) -> str:
        """One sentence about the plan."""
        blocks = counted(sum(map(len, self.units)), "block")
        if all(len(unit) == 1 for unit in self.units):
            return (
                f"{mode} wraps each of {blocks} by itself: no units of up to {format_bytes(self.limit_bytes)} are "
                f"predicted to save {format_percent(MIN_GAIN, 0)} of a step (simulated)"
            )
        return (
            f"{mode} wraps {blocks} in {counted(len(self.units), 'unit')}: the largest has "
            f"{format_bytes(self.unit_bytes)}, the largest block {format_bytes(self.block_bytes)}; predicted "
            f"{format_seconds(self.step_s)} a step, with one unit a block {format_seconds(self.apart_s)} (simulated)"
        )


def plan_units(inputs: Sharded, parameter_bytes: Mapping[str, int], limit_bytes: int | None = None) -> UnitPlan | None:
    """The plan of the blocks that have gradients; None without such blocks.

    `inputs.units` is one unit a block, and `parameter_bytes` has the bytes of each. Raises KeyError where a collective
    was not measured.
    """
    order = forward_order(inputs)
    if not order:
        return None
    block_bytes = max(parameter_bytes[path] for path in order)
    limit = BLOCKS_A_UNIT * block_bytes if limit_bytes is None else limit_bytes
    search = _Divisions(inputs, order, parameter_bytes, limit)
    apart = list(range(1, len(order)))
    cuts = search.exact_sum() if inputs.waits else search.on_stream()
    step_s, apart_s = search.step_s(cuts), search.step_s(apart)
    if step_s > apart_s * (1 - MIN_GAIN):
        cuts, step_s = apart, apart_s
    units = search.units(cuts)
    unit_bytes = max(sum(parameter_bytes[path] for path in unit) for unit in units)
    return UnitPlan(units, step_s, apart_s, unit_bytes, block_bytes, limit)


def merged(units: Mapping[str, Sequence[str]], wrapped: Iterable[Sequence[str]]) -> dict[str, list[str]]:
    """Parameter names by unit, of `units` by block, where the blocks of each of `wrapped` are one unit.

    Units stand in the order of their first blocks in `units`. A unit's name is those of its blocks.
    """
    names = {path: SEPARATOR.join(group) for group in wrapped for path in group}
    found: dict[str, list[str]] = {}
    for path, parameters in units.items():
        found.setdefault(names.get(path, path), []).extend(parameters)
    return found


class _Divisions:
    """Divisions of n blocks in forward order into contiguous units, each a list of cut positions from 1 to n-1."""

    def __init__(self, inputs: Sharded, order: Sequence[str], parameter_bytes: Mapping[str, int], limit: int) -> None:
        self._inputs, self._order, self._limit = inputs, order, limit
        kinds = {gradient.name: gradient.dtype for gradient in inputs.step.gradients}
        self._kinds = [{kinds[name] for name in inputs.units[path] if name in kinds} for path in order]
        self._kept = [0, *itertools.accumulate(parameter_bytes[path] for path in order)]
        self._sizes = [inputs.unit_bytes[path] for path in order]

    def units(self, cuts: Sequence[int]) -> Units:
        """The blocks between these cuts."""
        return [list(self._order[a:b]) for a, b in itertools.pairwise([0, *cuts, len(self._order)])]

    def step_s(self, cuts: Sequence[int]) -> float:
        """The predicted step [s]; infinite where a unit is not allowed."""
        if not all(self._allowed(a, b) for a, b in itertools.pairwise([0, *cuts, len(self._order)])):
            return math.inf
        return fsdp(replace(self._inputs, units=merged(self._inputs.units, self.units(cuts))))

    def exact_sum(self) -> list[int]:
        """The cuts with the least sum of the units' collectives."""
        gather, scatter = self._inputs.curve("all_gather"), self._inputs.curve("reduce_scatter")
        gathers = 2 * self._inputs.step.micro_steps
        sent = [0, *itertools.accumulate(self._sizes)]
        found: list[tuple[float, int, list[int]]] = [(0.0, 0, [])]  # sum [s], minus its units, its cuts
        for last in range(1, len(sent)):
            ways = []
            for first in range(last - 1, -1, -1):
                if not self._allowed(first, last):
                    break  # more blocks before it are not allowed either
                sum_s, units, cuts = found[first]
                nbytes = float(sent[last] - sent[first])
                own_s = gathers * gather(nbytes) + scatter(nbytes) + self._inputs.unit_s
                ways.append((sum_s + own_s, units - 1, [*cuts, first] if first else cuts))
            found.append(min(ways))
        return found[-1][2]

    def on_stream(self) -> list[int]:
        """The cuts with the least simulated step: of all, or of a search from two starts."""
        count = len(self._order)
        apart = list(range(1, count))
        if count <= MAX_EXHAUSTIVE:
            chosen = itertools.chain.from_iterable(itertools.combinations(apart, n) for n in range(count - 1, -1, -1))
            return min(map(list, chosen), key=self.step_s)
        hill = CutSearch([Gradient(path, size, 0.0) for path, size in zip(self._order, self._sizes, strict=True)])
        worth: Callable[[list[int]], float] = self.step_s
        starts = [hill.climb(cuts, worth(cuts), worth, MAX_TRIALS) for cuts in (apart, self.exact_sum())]
        return min(starts, key=lambda start: start[1])[0]

    def _allowed(self, first: int, last: int) -> bool:
        """True if the blocks from `first` to before `last` may be one unit: a single block always, several of one dtype
        within the limit."""
        if last - first == 1:
            return True
        return self._kept[last] - self._kept[first] <= self._limit and len(set().union(*self._kinds[first:last])) <= 1
