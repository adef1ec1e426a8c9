"""Planned units of `fsdp`, against sums by hand and against every division of a few blocks."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import layer, line, planner_of

from xbench.planning import unit_plan
from xbench.planning.sharded_step import ROOT, Sharded, fsdp
from xbench.planning.step import Gradient
from xbench.planning.unit_plan import Units, merged, plan_units
from xbench.records import UnitCost


def inputs(
    sizes: list[int], *, waits: bool, alpha_s: float = 1.0, per_byte_s: float = 0.01, dtypes: list[str] | None = None
) -> tuple[Sharded, dict[str, int]]:
    """Blocks b0, b1, ... of these bytes between two layers of the root, and their bytes. Every layer computes 1 s in
    each pass. A collective takes `alpha_s`, and `per_byte_s` a byte."""
    names = ["r0", *(f"b{place}" for place in range(len(sizes))), "r1"]
    kinds = dict(zip(names, ["float32", *(dtypes or ["float32"] * len(sizes)), "float32"], strict=True))
    nbytes = dict(zip(names, [1, *sizes, 1], strict=True))
    ready_s = {name: float(place) for place, name in enumerate(reversed(names), start=1)}
    layers = [layer(name, [(nbytes[name], ready_s[name])], 1.0, 1.0) for name in reversed(names)]
    gradients = [Gradient(f"{name}.0", nbytes[name], ready_s[name], kinds[name]) for name in reversed(names)]
    count = float(len(names))
    planner = planner_of(gradients, line(alpha_s, per_byte_s), forward_s=count, backward_s=count, optimizer_s=1.0)
    units = {name: [f"{name}.0"] for name in names[1:-1]} | {ROOT: ["r0.0", "r1.0"]}
    costs = {name: line(alpha_s, per_byte_s) for name in ("all_gather", "reduce_scatter")}
    kept = {unit: sum(nbytes[name.removesuffix(".0")] for name in own) for unit, own in units.items()}
    return Sharded(planner, layers, units, costs, 2, waits=waits), kept


def divisions(count: int) -> list[list[int]]:
    """The sizes of contiguous units, for every division of `count` blocks."""
    cuts = itertools.chain.from_iterable(itertools.combinations(range(1, count), n) for n in range(count))
    return [[b - a for a, b in itertools.pairwise([0, *chosen, count])] for chosen in cuts]


def shortest_s(given: Sharded, kept: dict[str, int], limit: int) -> float:
    """The shortest step [s] of every division whose units of several blocks are within the limit."""
    order = [unit for unit in given.units if unit != ROOT]
    found = math.inf
    for counts in divisions(len(order)):
        paths = iter(order)
        units = [list(itertools.islice(paths, count)) for count in counts]
        if all(len(unit) == 1 or sum(kept[path] for path in unit) <= limit for unit in units):
            found = min(found, fsdp(replace(given, units=merged(given.units, units))))
    return found


def test_pairs_of_equal_blocks_by_hand() -> None:
    """Four blocks of 100 bytes over Gloo: a unit of M bytes takes three collectives of 1 s + M/100 s.

    Twice the largest block is two blocks. Computation takes 12 s and half a second, the root's two collectives 2.04 s,
    the bytes of the blocks 12 s. What is left are 3 s a unit.
    """
    plan = plan_units(*inputs([100] * 4, waits=True))
    assert plan.units == [["b0", "b1"], ["b2", "b3"]]
    assert plan.apart_s == pytest.approx(12.5 + 2.04 + 12 + 4 * 3)
    assert plan.step_s == pytest.approx(12.5 + 2.04 + 12 + 2 * 3)
    assert (plan.unit_bytes, plan.block_bytes, plan.limit_bytes) == (200, 100, 200)
    assert plan.sentence("m") == (
        "m wraps 4 blocks in 2 units: the largest has 200 B, the largest block 100 B; predicted 32.5 s a step, with "
        "one unit a block 38.5 s (simulated)"
    )


def test_micro_steps_gather_anew() -> None:
    given, kept = inputs([100] * 2, waits=True)
    step = replace(given.step, micro_steps=3, accumulate_s=8.0)
    plan = plan_units(replace(given, planner=replace(given.planner, step=step)), kept)
    assert plan.units == [["b0", "b1"]]
    assert plan.apart_s - plan.step_s == pytest.approx(3 * 2 + 1)


@pytest.mark.parametrize(
    ("limit", "units"),
    [
        (None, [["b0"], ["b1", "b2", "b3", "b4", "b5"]]),  # twice 100 bytes
        (1000, [["b0", "b1", "b2", "b3", "b4", "b5"]]),
        (59, [["b0"], ["b1", "b2"], ["b3"], ["b4", "b5"]]),
        (1, [["b0"], ["b1"], ["b2"], ["b3"], ["b4"], ["b5"]]),
    ],
)
def test_a_limit_holds_for_units_of_several_blocks(limit: int | None, units: Units) -> None:
    assert plan_units(*inputs([100, 10, 40, 100, 20, 30], waits=True), limit).units == units


def test_units_cost_the_host_more_than_their_latencies() -> None:
    given, kept = inputs([100] * 4, waits=True, alpha_s=0.01)
    plan = plan_units(replace(given, unit=UnitCost(unit_s=3.0, tensor_s=0.5)), kept)
    assert plan.units == [["b0", "b1"], ["b2", "b3"]]
    assert plan.apart_s - plan.step_s == pytest.approx(2 * (3.0 + 3 * 0.01))


def test_blocks_of_two_dtypes_are_apart() -> None:
    plan = plan_units(*inputs([10] * 4, waits=True, dtypes=["float32", "bfloat16", "bfloat16", "float32"]), 1000)
    assert plan.units == [["b0"], ["b1", "b2"], ["b3"]]


@pytest.mark.parametrize(("alpha_s", "per_byte_s"), [(0.01, 0.01), (0.0, 0.0)])
@pytest.mark.parametrize("waits", [True, False])
def test_a_gain_too_small_to_trust_leaves_one_unit_a_block(waits: bool, alpha_s: float, per_byte_s: float) -> None:
    plan = plan_units(*inputs([100] * 4, waits=waits, alpha_s=alpha_s, per_byte_s=per_byte_s))
    assert plan.units == [["b0"], ["b1"], ["b2"], ["b3"]]
    assert plan.step_s == plan.apart_s
    assert "wraps each of 4 blocks by itself" in plan.sentence("m")


def test_of_equal_sums_the_one_of_most_units() -> None:
    """Two units of one pair and one block, or of two pairs: both have two units fewer, so the limit alone decides."""
    given, kept = inputs([100] * 3, waits=True, alpha_s=0.0)
    search = unit_plan._Divisions(given, ["b0", "b1", "b2"], kept, 1000)
    assert search.exact_sum() == [1, 2]


def test_a_block_without_gradients_is_in_no_unit() -> None:
    given, kept = inputs([100] * 2, waits=True)
    frozen = replace(given, units={"b9": ["b9.0"], **given.units})
    assert plan_units(frozen, {**kept, "b9": 50}).units == [["b0", "b1"]]
    assert plan_units(replace(given, units={ROOT: ["r0.0"]}), kept) is None


def test_a_collective_that_was_not_measured() -> None:
    given, kept = inputs([100] * 2, waits=True)
    with pytest.raises(KeyError):
        plan_units(replace(given, costs={}), kept)


cases = st.tuples(
    st.lists(st.integers(1, 200), min_size=1, max_size=7),
    st.floats(0.0, 5.0),
    st.floats(0.0, 0.1),
    st.integers(1, 800),
)


@given(cases, st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_division_of_a_few_blocks_is_shorter(case: tuple[list[int], float, float, int], waits: bool) -> None:
    """But for gains that are too small to trust."""
    sizes, alpha_s, per_byte_s, limit = case
    given, kept = inputs(sizes, waits=waits, alpha_s=alpha_s, per_byte_s=per_byte_s)
    plan = plan_units(given, kept, limit)
    assert plan is not None
    best_s = shortest_s(given, kept, limit)
    assert list(itertools.chain(*plan.units)) == [f"b{place}" for place in range(len(sizes))]
    assert all(len(unit) == 1 or sum(kept[path] for path in unit) <= limit for unit in plan.units)
    assert plan.step_s == pytest.approx(fsdp(replace(given, units=merged(given.units, plan.units))))
    if best_s < (1 - unit_plan.MIN_GAIN) * plan.apart_s - 1e-9:
        assert plan.step_s == pytest.approx(best_s)
    else:
        assert plan.step_s <= plan.apart_s
        assert plan.apart_s * (1 - unit_plan.MIN_GAIN) <= best_s + 1e-9


@given(cases)
@settings(max_examples=40, deadline=None)
def test_the_search_on_a_stream_is_near_the_best_of_all_divisions(case: tuple[list[int], float, float, int]) -> None:
    """The limit of the exhaustive search is 0, so even a few blocks are searched cut by cut."""
    sizes, alpha_s, per_byte_s, limit = case
    given, kept = inputs(sizes, waits=False, alpha_s=alpha_s, per_byte_s=per_byte_s)
    search = unit_plan._Divisions(given, [f"b{place}" for place in range(len(sizes))], kept, limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unit_plan, "MAX_EXHAUSTIVE", 0)
        found_s = search.step_s(search.on_stream())
    assert found_s <= search.step_s(range(1, len(sizes)))
    assert found_s <= 1.05 * shortest_s(given, kept, limit)


def test_names_of_merged_units() -> None:
    apart = {"a.0": ["a.0.0"], "a.1": ["a.1.0"], "frozen": ["frozen.0"], "a.2": ["a.2.0"], ROOT: ["head"]}
    assert merged(apart, [["a.1", "a.2"], ["a.0"]]) == {
        "a.0": ["a.0.0"], "a.1, a.2": ["a.1.0", "a.2.0"], "frozen": ["frozen.0"], ROOT: ["head"],
    }  # fmt: skip
