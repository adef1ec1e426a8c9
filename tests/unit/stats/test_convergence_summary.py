"""Means over seeds, and where they lie by the reference's interval."""

from __future__ import annotations

import pytest

from xbench.records import ConvergenceCurve, SeedMean
from xbench.stats.convergence import converged, cycles_s, detectable, mean_of, where


def curve(mode: str, seed: int, accuracy: float, **fields: object) -> ConvergenceCurve:
    given = {"train_loss": [2.0, 1.0], "test_loss": [1.5], "steps_s": [1.0, 3.0], "ranks_agree": True} | fields
    return ConvergenceCurve(mode=mode, seed=seed, test_accuracy=[0.1, accuracy], **given)  # type: ignore[arg-type]


def test_a_mean_has_student_s_interval() -> None:
    found = mean_of([0.9, 0.92, 0.94])
    assert found.mean == pytest.approx(0.92)
    assert found.ci95 == pytest.approx((0.92 - 4.302653 * 0.02 / 3**0.5, 0.92 + 4.302653 * 0.02 / 3**0.5))
    assert mean_of([0.9]) == SeedMean(mean=0.9)


def test_an_interval_is_cut_to_the_values_that_the_quantity_can_take() -> None:
    assert mean_of([0.98, 0.99], least=0.0, most=1.0).ci95 == pytest.approx((0.985 - 12.706205 * 0.005, 1.0))
    assert mean_of([0.98, 0.99]).ci95 == pytest.approx((0.985 - 12.706205 * 0.005, 0.985 + 12.706205 * 0.005))
    curves = [curve("ddp", 0, 0.02), curve("ddp", 1, 0.98), curve("spb", 0, 0.98), curve("spb", 1, 0.99)]
    found = converged({"ddp": 1, "spb": 1}, curves, "ddp", {})
    assert found["ddp"].accuracy == SeedMean(mean=0.5, ci95=(0.0, 1.0))
    assert found["spb"].accuracy.ci95 == pytest.approx((0.985 - 12.706205 * 0.005, 1.0))
    assert found["spb"].difference.ci95 == (-1.0, 1.0)


def test_a_mode_is_judged_by_its_differences_seed_by_seed() -> None:
    assert where(SeedMean(mean=0.01, ci95=(-0.01, 0.03))) == "within"
    assert where(SeedMean(mean=-0.02, ci95=(-0.03, -0.01))) == "below"
    assert where(SeedMean(mean=0.02, ci95=(0.01, 0.03))) == "above"
    assert where(SeedMean(mean=0.03)) == "unknown"
    assert where(None) == "unknown"
    # far below the reference's interval, because its seeds differ little; the differences show nothing
    accuracies = {"ddp": (0.990, 0.991, 0.992), "spb": (0.999, 0.960, 0.985)}
    curves = [curve(mode, seed, value) for mode, values in accuracies.items() for seed, value in enumerate(values)]
    assert converged({"ddp": 1, "spb": 1}, curves, "ddp", {})["spb"].verdict == "within"


def test_what_so_many_seeds_find() -> None:
    """By published tables, a paired t test at 5 % has 80 % power at 1.68 deviations with 5 pairs, 1.00 with 10."""
    assert detectable([0.0, 1.0, 2.0, 3.0, 4.0]) == pytest.approx(1.682 * 2.5**0.5, rel=0.005)
    assert detectable([0.0, 1.0] * 5) == pytest.approx(0.9960 * (2.5 / 9) ** 0.5, rel=0.005)
    assert detectable([0.25, 0.25, 0.25]) == 0.0
    assert detectable([0.25]) is None


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
    assert spb.difference.mean == pytest.approx(-0.39)
    assert found["wfbp"].error == "ranks ended with different parameters (seed 0)"
    assert found["optimal"].error == "needs a plan"
    assert found["single"].error == "nothing was trained"
    early = converged(modes, curves, "ddp", {"optimal": "needs a plan"}, complete=False)
    assert (early["single"].status, early["single"].error) == ("not trained", None)
    assert early["optimal"].error == "needs a plan"
    assert early["spb"] == spb
