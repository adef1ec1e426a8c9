"""Non-inferiority of `auto` to `ddp`: the pooled test, its power, and the p of one cell, exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from xbench.records import AutoAgainst, FabricRecord, ValidationCell, Verdict, WorkloadRecord
from xbench.spec import WorkloadSpec
from xbench.stats.non_inferiority import non_inferiority, one_sided_p, power


def cell(log_ratio: float, p: float | None = None, verdict: Verdict = "inconclusive") -> ValidationCell:
    """A cell in which auto takes e**log_ratio of ddp's time."""
    workload = WorkloadRecord(
        spec=WorkloadSpec(name="net"), title="net", parameters=1, tensors=1, grad_bytes=4, batch_size=1, input=""
    )
    fabric = FabricRecord(
        name="shaped", spec="shaped:hosts=2,rate=1gbit", label="real", backend="gloo", hosts=2, ranks_per_host=1,
        world_size=2,
    )  # fmt: skip
    ratio = math.exp(log_ratio)
    against = [
        AutoAgainst(mode="wfbp", ratio=0.1, ci95=(0.1, 0.1), verdict="faster"),
        AutoAgainst(mode="ddp", ratio=ratio, ci95=(ratio / 1.1, ratio * 1.1), verdict=verdict),
    ]
    return ValidationCell(
        workload=workload, fabric=fabric, predicted_on=2, compute_s=0.5, backward_overlap_bound_s=None, points=[],
        auto_against=against, auto_not_slower_p=p, blocks=4, record="",
    )  # fmt: skip


def test_the_mean_of_cells_has_students_limit() -> None:
    found = non_inferiority([cell(-0.02), cell(0.0), cell(0.0), cell(0.02)])
    assert found is not None
    deviation = math.sqrt(0.0008 / 3)
    # Student's 95 % quantile at 3 degrees of freedom is 2.3534.
    assert found.ratio == pytest.approx(1.0)
    assert math.log(found.upper) == pytest.approx(2.35336 * deviation / 2, rel=1e-5)
    assert (found.cells, found.shown, found.margin) == (4, True, 0.02)
    assert found.power == pytest.approx(power(4, deviation))


def test_a_mean_at_the_margin_is_not_shown_and_a_faster_one_is_however_far_apart() -> None:
    at_margin = non_inferiority([cell(math.log(1.02))] * 3)
    assert at_margin is not None
    assert not at_margin.shown
    ahead = non_inferiority([cell(-0.4), cell(-0.2), cell(-0.3)])
    assert ahead is not None
    assert ahead.shown
    assert ahead.power < 0.2


def test_power_is_that_of_students_test_if_both_are_equally_fast() -> None:
    for cells, deviation in ((4, 0.01), (24, 0.03), (24, 0.06), (100, 0.1)):
        shift = math.log(1.02) * math.sqrt(cells) / deviation
        limit = stats.t.ppf(0.95, cells - 1)
        assert power(cells, deviation) == pytest.approx(stats.nct.sf(limit, cells - 1, shift), abs=1e-9)
    generator = np.random.default_rng(1)
    drawn = generator.normal(0.0, 0.03, (40_000, 24))
    upper = drawn.mean(axis=1) + stats.t.ppf(0.95, 23) * drawn.std(axis=1, ddof=1) / math.sqrt(24)
    assert power(24, 0.03) == pytest.approx(np.mean(upper < math.log(1.02)), abs=0.01)
    assert power(24, 0.0) == 1.0


def test_the_cells_needed_are_the_fewest_of_that_power() -> None:
    found = non_inferiority([cell(-0.05), cell(0.05)])
    assert found is not None
    needed, deviation = found.cells_needed, math.sqrt(0.005)
    assert needed is not None
    assert power(needed, deviation) >= 0.9 > power(needed - 1, deviation)
    far = non_inferiority([cell(-1.0), cell(1.0)])
    assert far is not None
    assert far.cells_needed is None


def test_cells_alone_are_held_together_by_holm() -> None:
    found = non_inferiority([cell(0.0, 0.01), cell(0.0, 0.03, "slower"), cell(0.0, 0.02), cell(0.0)])
    assert found is not None
    # Holm: 3 · 0.01 and 2 · 0.02 are below 0.05, and so is 0.03.
    assert (found.cells, found.cells_tested, found.cells_shown) == (4, 3, 3)
    assert found.slower == ["net at 1gbit"]
    fewer = non_inferiority([cell(0.0, 0.02), cell(0.0, 0.02), cell(0.0, 0.02)])
    assert fewer is not None
    assert fewer.cells_shown == 0


def test_one_cell_is_no_test() -> None:
    assert non_inferiority([cell(0.0)]) is None
    assert non_inferiority([cell(0.0), cell(0.0).model_copy(update={"auto_against": []})]) is None


def test_a_cell_s_p_is_that_of_students_test_against_the_margin_over_launches() -> None:
    reference = [(launch, 0, 1.0) for launch in range(4)]
    mode = [(launch, 0, math.exp(value)) for launch, value in enumerate((-0.01, 0.0, 0.0, 0.01))]
    error = math.sqrt(0.0002 / 3) / 2
    expected = stats.t.sf(math.log(1.02) / error, 3)
    assert one_sided_p(mode, reference) == pytest.approx(expected)
    assert one_sided_p(mode, reference, 0.0) == pytest.approx(0.5)
    assert one_sided_p(mode[:3], reference) is None
