"""No prediction lies below a bound, whatever the link does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from planning_cases import layer, step_times
from what_if_cases import beside

from xbench.modes import mode_info
from xbench.planning.bounds import bounds
from xbench.planning.contention import Contention
from xbench.planning.cost import CostCurve
from xbench.planning.plans import Planner
from xbench.planning.step import Gradient, StepModel
from xbench.records import CostModel, CostPoint, CostSegment, Layer

GRADIENTS = [Gradient("c", 10, 1.0), Gradient("b", 20, 2.0), Gradient("a", 30, 4.0)]
GRID = np.arange(0.0, 61.0)
PARTS = {"forward_s": 2.0, "backward_s": 4.0, "optimizer_s": 0.5}
PARTIAL = "spb"
"""A step that sends fewer bytes."""


def test_pieces_may_beat_whole_gradients_where_the_link_slows_down_with_size() -> None:
    curve = CostCurve(sizes=GRID, times=GRID**2 / 100, slope=10.0)
    found = bounds(GRADIENTS, curve, **PARTS, compute_s=6.5)
    assert found.communication_s == pytest.approx(36.0)
    assert found.overlap_bound_s == found.backward_overlap_bound_s == 6.5  # pieces of a byte take 0.6 s
    latency = CostCurve(sizes=GRID, times=1 + GRID**2 / 100, slope=10.0)
    # least time per byte at 10 bytes: 0.2 s, so 12 s for 60 bytes; from 1 s on without a pause
    found = bounds(GRADIENTS, latency, **PARTS, compute_s=6.5)
    assert found.overlap_bound_s == pytest.approx(12.0, rel=1e-3)
    assert found.backward_overlap_bound_s == pytest.approx(2 + 1 + 12, rel=1e-3)


def test_a_burst_counts_once_where_a_long_sequence_was_measured() -> None:
    # a rested link passes 10 bytes ten times as fast as those beyond them, at 0.2 s
    times = np.maximum(0.02 * GRID, 0.2 * GRID - 1.8)
    curve = CostCurve(sizes=GRID[1:], times=times[1:], slope=0.2)
    promised = bounds(GRADIENTS, curve, **PARTS, compute_s=6.5)
    assert promised.overlap_bound_s == 6.5  # 0.02 s a byte
    assert promised.backward_overlap_bound_s == pytest.approx(2 + 4 + 0.6)
    long = replace(
        Contention.none(), log_sizes=np.log(GRID[1:]), collective=np.ones((2, 60)), compute=np.ones((2, 60)),
        sustained=0.2 * GRID[1:] / times[1:],
    )  # fmt: skip
    paced = bounds(GRADIENTS, curve, **PARTS, compute_s=6.5, contention=long)
    # 60 bytes from 1 s on take 12 s, less the 1.8 s that a rested link saves
    assert paced.backward_overlap_bound_s == pytest.approx(2 + 1 + 12 - 1.8, rel=1e-2)
    assert paced.overlap_bound_s == pytest.approx(12.0, rel=1e-2)
    assert paced.communication_s == promised.communication_s == pytest.approx(10.2)


def test_two_in_flight_may_beat_one_after_the_other() -> None:
    curve = CostCurve.line(1.0, 0.1)
    alone = bounds(GRADIENTS, curve, **PARTS, compute_s=6.5)
    quicker = replace(Contention.none(), quiet=np.array([[1.0], [0.8]]))
    both = bounds(GRADIENTS, curve, **PARTS, compute_s=6.5, contention=quicker)
    assert (alone.overlap_bound_s, both.overlap_bound_s) == (pytest.approx(7.0), 6.5)
    # {c}, then {b, a} from 4 on, 6 s; with another in flight one each without a pause, 1.6 + 2.4 + 3.2 s
    assert alone.backward_overlap_bound_s == pytest.approx(2 + 4 + 6)
    assert both.backward_overlap_bound_s == pytest.approx(2 + 1 + 7.2)


def test_what_a_rest_saves_counts_once_and_only_where_gradients_wait_for_backward() -> None:
    curve = CostCurve.line(0.0, 0.2)
    without = bounds(GRADIENTS, curve, **PARTS, compute_s=6.5)
    found = bounds(GRADIENTS, curve, **PARTS, compute_s=6.5, contention=replace(Contention.none(), rest_s=0.5))
    assert found.backward_overlap_bound_s == pytest.approx(without.backward_overlap_bound_s - 0.5)
    # a link that rests in a step of that kind does so for as long as it then saves
    assert found.overlap_bound_s == without.overlap_bound_s


def drawn_layers(random: np.random.Generator) -> list[Layer]:
    count = int(random.integers(2, 8))
    ready = np.sort(random.uniform(0, 2, count))[::-1]
    sizes = (10 ** random.uniform(3, 7, count)).astype(int) // 4 * 4 + 4
    forward = random.dirichlet(np.ones(count))
    return [
        layer(f"l{place}", [(int(size), float(at))], float(forward_s))
        for place, (size, at, forward_s) in enumerate(zip(sizes, ready, forward, strict=True))
    ]


def drawn_times(random: np.random.Generator, kind: str, total: int) -> tuple[list[tuple[int, float]], float]:
    """Sizes [B] and times [s] of T, and the pace [s/B] of a long sequence (0: that of T)."""
    if kind != "burst":
        sizes = np.unique((10 ** random.uniform(2.5, np.log10(1.5 * total), 6)).astype(int))
        return [*zip(sizes.tolist(), np.cumsum(10 ** random.uniform(-3.5, -0.5, len(sizes))).tolist(), strict=True)], 0
    sizes = np.unique((10 ** np.linspace(3, np.log10(1.5 * total), 12)).astype(int))
    pace, burst = random.uniform(0.3, 2) / total, 10 ** random.uniform(4.5, 5.5)
    times = 10 ** random.uniform(-4, -2) + np.maximum(sizes * pace / 10, (sizes - burst) * pace)
    return [*zip(sizes.tolist(), times.tolist(), strict=True)], pace


def drawn_contention(random: np.random.Generator, kind: str, curve: CostCurve, pace: float) -> Contention | None:
    if kind == "curved":
        return None
    points = []
    for size in (4096, 65536, 524288, 4194304):
        one = max(float(curve(float(size))), size * pace)
        two = one * {"burst": 1.0, "two": random.uniform(0.5, 1.2), "crowd": random.uniform(1, 2.5)}[kind]
        for in_flight, alone_s, least in ((1, one, 1.0), (2, two, 0.9)):
            loaded_s, slowdown = alone_s * random.uniform(least, 1.5), random.uniform(1, 1.5)
            points.append((size, in_flight, alone_s, loaded_s, slowdown))
    measured = beside(*points).model_copy(update={"rest_s": float(random.choice([0.0, 0.01]))})
    return Contention.of(measured, curve)


@pytest.mark.parametrize("kind", ["curved", "two", "crowd", "burst"])
def test_no_prediction_of_any_mode_is_below_its_bound(kind: str) -> None:
    """Links of four kinds: T of any shape; two in flight that help or hinder each other; bursts that pass at once."""
    for seed in range(20):
        random = np.random.default_rng(seed)
        layers = drawn_layers(random)
        points, pace = drawn_times(random, kind, sum(layer.grad_bytes for layer in layers))
        cost = CostModel(
            backend="gloo", world_size=2, alpha_s=1e-3, beta_s_per_byte=1e-8, alpha_ci95=(1e-3, 1e-3),
            beta_ci95=(1e-8, 1e-8), max_relative_residual=0.5,
            points=[
                CostPoint(nbytes=size, transfer_s=s, ci95=(s, s), wait_s=0.0, repetitions=5) for size, s in points
            ],
            segments=[CostSegment(from_bytes=0, alpha_s=1e-3, beta_s_per_byte=0.0)], segmented_max_relative_residual=1,
        )  # fmt: skip
        curve, step = CostCurve.of(cost), StepModel.of(layers, step_times())
        contention = drawn_contention(random, kind, curve, pace)
        lower = bounds(step.gradients, curve, **step.parts, compute_s=step.compute_s, contention=contention)
        planner = Planner(step, cost, contention, layers=tuple(layers))
        for mode, plan in planner.plans().items():
            carrier = mode_info(plan.carrier or mode)
            if carrier.reducer != "none" and mode != PARTIAL:
                bound_s = lower.of(ahead=carrier.puts_off)
                assert plan.predicted_step_s >= bound_s * (1 - 1e-9), (kind, seed, mode)
