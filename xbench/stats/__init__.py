"""Statistics of few, noisy, drifting measurements: pure functions, no torch, and no scipy until one needs it."""

from __future__ import annotations

from xbench.stats.compare import MARGIN, REFERENCE_RATIO, BlockValue, paired_ratio, verdict
from xbench.stats.order import balanced_orders
from xbench.stats.steps import longest_steps, steps_of_all
from xbench.stats.summary import (
    detect_warmup,
    flag_outliers,
    grouped_estimate,
    median_estimate,
    relative_half_width,
)
from xbench.stats.windows import Window, overlap_rates, weighted_progress

__all__ = [
    "MARGIN",
    "REFERENCE_RATIO",
    "BlockValue",
    "Window",
    "balanced_orders",
    "detect_warmup",
    "flag_outliers",
    "grouped_estimate",
    "longest_steps",
    "median_estimate",
    "overlap_rates",
    "paired_ratio",
    "relative_half_width",
    "steps_of_all",
    "verdict",
    "weighted_progress",
]
