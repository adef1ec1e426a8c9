"""Skill over naive predictors, order of modes and regret, exactly."""

from __future__ import annotations

import pytest

from xbench.records import (
    Estimate,
    FabricRecord,
    ModePair,
    Order,
    ValidationCell,
    ValidationPoint,
    WorkloadRecord,
)
from xbench.spec import WorkloadSpec
from xbench.stats.prediction_skill import order, regret, skills


def cell(
    steps: dict[str, tuple[float, float]],
    pairs: dict[tuple[str, str], tuple[float, float]] | None = None,
    *,
    rate: str = "1gbit",
    communication_s: float | None = 0.5,
) -> ValidationCell:
    """`steps`: (predicted, measured) [s] by mode; `pairs`: the interval of the first mode's time over the second's."""
    workload = WorkloadRecord(
        spec=WorkloadSpec(name="net"), title="net", parameters=1, tensors=1, grad_bytes=4, batch_size=1, input=""
    )
    fabric = FabricRecord(
        name="shaped", spec=f"shaped:hosts=2,rate={rate}", label="real", backend="gloo", hosts=2, ranks_per_host=1,
        world_size=2,
    )  # fmt: skip
    points = [
        ValidationPoint(
            mode=mode, predicted_step_s=predicted, measured_step_s=Estimate(median=took, ci95=(took, took)),
            error=predicted / took - 1,
        )
        for mode, (predicted, took) in steps.items()
    ]  # fmt: skip
    compared = [
        ModePair(mode=mode, other=other, ratio=sum(ends) / 2, ci95=ends)
        for (mode, other), ends in (pairs or {}).items()
    ]
    return ValidationCell(
        workload=workload, fabric=fabric, predicted_on=2, compute_s=0.5, backward_overlap_bound_s=None, points=points,
        communication_s=communication_s, pairs=compared, blocks=4, record="",
    )  # fmt: skip


def test_skill_is_that_of_the_same_predictions_by_link() -> None:
    cells = [
        cell({"compute": (9.0, 1.0), "ddp": (1.1, 1.0), "wfbp": (1.8, 2.0)}),
        cell({"ddp": (1.5, 1.0), "wfbp": (1.5, 2.0)}, rate="10gbit"),
    ]
    whole, slow, fast = skills(cells)
    # ddp at 1gbit: 10 %, as ddp 10 %, one bucket 0 %; wfbp: 10 %, as ddp 45 %, one bucket 50 %.
    assert slow.model_dump() == pytest.approx({
        "name": "at 1gbit", "count": 2, "median": 0.1, "as_ddp": 0.275, "as_ddp_skill": 1 - 0.1 / 0.275,
        "one_bucket": 0.25, "one_bucket_skill": 0.6,
    })  # fmt: skip
    # At 10gbit: 50 and 25 %; as ddp the same, because both are predicted as ddp; one bucket 0 and 50 %.
    assert (fast.name, fast.median, fast.as_ddp, fast.as_ddp_skill) == ("at 10gbit", 0.375, 0.375, 0.0)
    assert fast.one_bucket_skill == pytest.approx(-0.5)
    assert (whole.name, whole.count) == ("all", 4)
    assert whole.median == pytest.approx(0.175)


def test_a_naive_predictor_without_error_leaves_no_skill() -> None:
    (whole, _) = skills([cell({"ddp": (1.0, 1.0)})])
    assert (whole.as_ddp_skill, whole.one_bucket_skill) == (None, None)


def test_cells_without_what_naive_predictors_need_are_left_out() -> None:
    assert skills([]) == []
    assert skills([cell({"wfbp": (1.0, 1.0)})]) == []
    assert skills([cell({"ddp": (1.0, 1.0)}, communication_s=None)]) == []


def test_the_order_counts_where_a_difference_was_measured() -> None:
    steps = {"a": (1.0, 1.0), "b": (2.0, 1.2), "c": (2.0, 0.8), "d": (3.0, 1.0)}
    found = order([
        cell(steps, {("a", "b"): (0.7, 0.9), ("a", "c"): (1.1, 1.3), ("b", "c"): (1.3, 1.6), ("a", "d"): (0.9, 1.1)}),
        cell(steps, {("b", "a"): (1.05, 1.2), ("a", "unpredicted"): (0.1, 0.2)}),
    ])  # fmt: skip
    # a before b is right twice; a before c is wrong; b and c are predicted equal; a and d were not told apart.
    assert found == Order(pairs=5, decided=4, right=2, equal=1)
    assert order([cell(steps)]) is None


def test_an_interval_that_ends_at_one_decides_nothing() -> None:
    found = order([cell({"a": (1.0, 1.0), "b": (2.0, 1.2)}, {("a", "b"): (0.7, 1.0)})])
    assert found == Order(pairs=1, decided=0, right=0, equal=0)


def test_regret_is_what_the_predicted_best_takes_longer_than_the_fastest() -> None:
    cells = [
        cell({"compute": (0.1, 0.1), "ddp": (1.0, 2.0), "wfbp": (1.1, 1.6)}),
        cell({"ddp": (1.0, 1.0), "wfbp": (1.1, 1.6)}),
        cell({"ddp": (1.0, 1.1), "wfbp": (1.0, 1.0)}),
        cell({"ddp": (1.0, 1.0)}),
    ]
    found = regret(cells)
    assert found is not None
    assert found.model_dump() == pytest.approx({
        "cells": 3, "best": 1, "median": 0.1, "p95": 0.25, "worst": 0.25, "median_s": 0.1, "p95_s": 0.4, "worst_s": 0.4,
    })  # fmt: skip
    assert regret(cells[3:]) is None
