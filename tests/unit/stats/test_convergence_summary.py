"""Means over seeds, and where they lie by the reference's interval."""

from __future__ import annotations

import pytest

from xbench.records import ConvergenceCurve, MeanOf
from xbench.stats.convergence import converged, cycles_s, mean_of, where


def curve(mode: str, seed: int, accuracy: float, **fields: object) -> ConvergenceCurve:
    given = {"train_loss": [2.0, 1.0], "test_loss": [1.5], "steps_s": [1.0, 3.0], "ranks_agree": True} | fields
    return ConvergenceCurve(mode=mode, seed=seed, test_accuracy=[0.1, accuracy], **given)  # type: ignore[arg-type]


def test_a_mean_has_student_s_interval() -> None:
    found = mean_of([0.9, 0.92, 0.94])
    assert found.mean == pytest.approx(0.92)
    assert found.ci95 == pytest.approx((0.92 - 4.302653 * 0.02 / 3**0.5, 0.92 + 4.302653 * 0.02 / 3**0.5))
    assert mean_of([0.9]) == MeanOf(mean=0.9)


def test_an_interval_is_cut_to_the_values_that_the_quantity_can_take() -> None:
    assert mean_of([0.98, 0.99], least=0.0, most=1.0).ci95 == pytest.approx((0.985 - 12.706205 * 0.005, 1.0))
    assert mean_of([0.98, 0.99]).ci95 == pytest.approx((0.985 - 12.706205 * 0.005, 0.985 + 12.706205 * 0.005))
    curves = [curve("ddp", 0, 0.02), curve("ddp", 1, 0.98), curve("spb", 0, 0.98), curve("spb", 1, 0.99)]
    found = converged({"ddp": 1, "spb": 1}, curves, "ddp", {})
    assert found["ddp"].accuracy == MeanOf(mean=0.5, ci95=(0.0, 1.0))
    assert found["spb"].accuracy is not None
    assert found["spb"].accuracy.ci95 == pytest.approx((0.985 - 12.706205 * 0.005, 1.0))
    assert found["spb"].difference is not None
    assert found["spb"].difference.ci95 == (-1.0, 1.0)


def test_where_a_mean_lies() -> None:
    reference = MeanOf(mean=0.9, ci95=(0.88, 0.92))
    assert where(0.89, reference) == ("within", 0.0)
    assert where(0.86, reference) == ("below", pytest.approx(0.02))
    assert where(0.93, reference) == ("above", pytest.approx(0.01))
    assert where(0.93, MeanOf(mean=0.9)) == ("unknown", None)


def test_only_whole_cycles_have_a_mean_step() -> None:
    assert cycles_s([1.0, 3.0, 1.0, 3.0, 9.0], 2) == [2.0, 2.0]
    assert cycles_s([1.0, 3.0], 1) == [1.0, 3.0]


def test_modes_are_judged_by_the_reference_s_seeds() -> None:
    curves = [curve("ddp", 0, 0.90), curve("ddp", 1, 0.92), curve("spb", 0, 0.50, activation_bytes=[1.0, 3.0]),
              curve("spb", 1, 0.54), curve("wfbp", 0, 0.9, ranks_agree=False)]  # fmt: skip
    modes = {"ddp": 1, "spb": 2, "wfbp": 1, "optimal": 1, "single": 1}
    found = converged(modes, curves, "ddp", {"optimal": "needs a plan"})
    assert found["ddp"].verdict == "reference"
    assert found["ddp"].difference is None
    spb = found["spb"]
    assert (spb.verdict, spb.status, spb.step_s, spb.activation_bytes) == ("below", "ok", 2.0, 2.0)
    assert spb.difference is not None
    assert spb.difference.mean == pytest.approx(-0.39)
    assert found["wfbp"].error == "ranks ended with different parameters (seed 0)"
    assert found["optimal"].error == "needs a plan"
    assert found["single"].error == "nothing was trained"
    early = converged(modes, curves, "ddp", {"optimal": "needs a plan"}, complete=False)
    assert (early["single"].status, early["single"].error) == ("not trained", None)
    assert early["optimal"].error == "needs a plan"
    assert early["spb"] == spb
