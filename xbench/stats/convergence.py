"""Effect of a mode on accuracy, from training curves: means over seeds with intervals, against the reference's.

Seeds are independent trainings: the interval of a mean is Student's, cut to the values that the quantity can take,
which keeps its coverage (Mandelkern 2002). Modes train the same seeds on the same samples, so a mode is judged by its
differences from the reference, seed by seed: `below` or `above` if their interval excludes 0. `detectable` is the
difference that this number of seeds finds in 80 of 100 runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

from xbench.records import Converged, ConvergenceCurve, SeedMean, WorkFormula
from xbench.stats.location import student_quantile

Where = Literal["within", "below", "above", "unknown"]

POWER = 0.8


def mean_of(values: Sequence[float], *, least: float = -math.inf, most: float = math.inf) -> SeedMean:
    """The mean with Student's 95 % interval, cut to [`least`, `most`], the values that the quantity can take.

    A single value has no interval. Raises StatisticsError for no values.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return SeedMean(mean=mean)
    half = student_quantile(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return SeedMean(mean=mean, ci95=(max(least, mean - half), min(most, mean + half)))


def where(difference: SeedMean | None) -> Where:
    """Word for a mean difference from the reference: `within` if its interval contains 0."""
    if difference is None or difference.ci95 is None:
        return "unknown"
    low, high = difference.ci95
    return "below" if high < 0 else "above" if low > 0 else "within"


def detectable(differences: Sequence[float]) -> float | None:
    """The true mean difference that so many seeds with this spread find in 80 of 100 runs; None below two seeds.

    It solves the power of the two-sided paired t test at 5 % by the non-central t distribution.
    """
    from scipy.special import nctdtrinc

    count = len(differences)
    if count < 2:
        return None
    shift = float(nctdtrinc(count - 1, 1 - POWER, student_quantile(0.975, count - 1)))
    return shift * statistics.stdev(differences) / math.sqrt(count)


def cycles_s(steps_s: Sequence[float], cycle: int) -> list[float]:
    """Mean step [s] of each whole cycle of steps."""
    count = len(steps_s) // cycle * cycle
    return [statistics.fmean(steps_s[start : start + cycle]) for start in range(0, count, cycle)]


def converged(
    modes: Mapping[str, int],
    curves: Sequence[ConvergenceCurve],
    reference: str,
    failed: Mapping[str, str],
    complete: bool = True,
) -> dict[str, Converged]:
    """Result of every mode. `modes`: the cycle of steps of each; `failed`: the reason, by failed mode.

    `complete` is False if the run ended early. Then a mode without a curve is not trained and has not failed.
    """
    results: dict[str, Converged] = {}
    by_mode = {mode: {curve.seed: curve for curve in curves if curve.mode == mode} for mode in modes}
    last = {mode: {seed: curve.test_accuracy[-1] for seed, curve in of.items()} for mode, of in by_mode.items()}
    for mode, cycle in modes.items():
        mode_curves = list(by_mode[mode].values())
        unequal = next((curve.seed for curve in mode_curves if not curve.ranks_agree), None)
        if not mode_curves and not complete and mode not in failed:
            results[mode] = Converged(mode=mode, status="not trained")
            continue
        if mode in failed or not mode_curves or unequal is not None:
            error = failed.get(mode) or ("nothing was trained" if not mode_curves else "")
            error = error or f"ranks ended with different parameters (seed {unequal})"
            results[mode] = Converged(mode=mode, status="failed", error=error)
            continue
        accuracy = mean_of(list(last[mode].values()), least=0.0, most=1.0)
        shared = [last[mode][seed] - last[reference][seed] for seed in last[mode] if seed in last.get(reference, {})]
        difference = mean_of(shared, least=-1.0, most=1.0) if shared and mode != reference else None
        steps = [value for curve in mode_curves for value in cycles_s(curve.steps_s, cycle)]
        results[mode] = Converged(
            mode=mode,
            status="ok",
            accuracy=accuracy,
            test_loss=mean_of([curve.test_loss[-1] for curve in mode_curves]),
            difference=difference,
            detectable=detectable(shared) if difference is not None else None,
            verdict="reference" if mode == reference else where(difference),
            step_s=statistics.median(steps) if steps else None,
            sent_bytes=_mean([curve.sent_bytes for curve in mode_curves if curve.sent_bytes is not None]),
            activation_bytes=_mean([value for curve in mode_curves for value in curve.activation_bytes]),
            activation_peak_bytes=max((v for curve in mode_curves for v in curve.activation_peak_bytes), default=None),
            backward_flops=_mean([value for curve in mode_curves for value in curve.backward_flops]),
            formula=_mean_formula([value for curve in mode_curves for value in curve.formula]),
            device_peak_bytes=max((v for curve in mode_curves for v in curve.device_peak_bytes), default=None),
        )
    return results


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _mean_formula(parts: Sequence[WorkFormula]) -> WorkFormula | None:
    if not parts:
        return None
    names = WorkFormula.model_fields
    return WorkFormula(**{name: statistics.fmean(getattr(part, name) for part in parts) for name in names})
