"""A comparison of cluster policies as tidy tables: every simulation, what they say together, and the curves."""

from __future__ import annotations

from typing import Any

from xbench.records import ClusterComparison

Row = dict[str, Any]


def cluster_tables(record: ClusterComparison) -> dict[str, list[Row]]:
    """The tables by name, the main one first."""
    of = {"label": record.label, "trace": record.trace.name, "gpus": record.gpus, "gpus_per_host": record.gpus_per_host}
    return {
        "runs": [
            {**of, **run.model_dump(), "gap": run.jct_mean_s / run.bound_s - 1 if run.bound_s else None}
            for run in record.runs
        ],
        "results": [
            {
                **of,
                "policy": one.policy,
                "restart_s": one.restart_s,
                "placement": one.placement,
                "jct_mean_s": one.jct_mean_s,
                "jct_mean_low_s": one.jct_mean_ci95[0] if one.jct_mean_ci95 else None,
                "jct_mean_high_s": one.jct_mean_ci95[1] if one.jct_mean_ci95 else None,
                "ratio": one.ratio,
                "ratio_low": one.ratio_ci95[0] if one.ratio_ci95 else None,
                "ratio_high": one.ratio_ci95[1] if one.ratio_ci95 else None,
                "gap": one.gap,
                "gap_low": one.gap_ci95[0] if one.gap_ci95 else None,
                "gap_high": one.gap_ci95[1] if one.gap_ci95 else None,
                "gap_exact": one.gap_exact,
                "placed_ratio": one.placed_ratio,
                "placed_ratio_low": one.placed_ratio_ci95[0] if one.placed_ratio_ci95 else None,
                "placed_ratio_high": one.placed_ratio_ci95[1] if one.placed_ratio_ci95 else None,
                "growing": one.growing,
            }
            for one in record.results
        ],
        "curves": [
            {
                **of,
                "policy": curve.policy,
                "restart_s": curve.restart_s,
                "placement": curve.placement,
                "percentile": percentile,
                "jct_s": jct_s,
            }
            for curve in record.curves
            for percentile, jct_s in enumerate(curve.jct_s)
        ],
    }
