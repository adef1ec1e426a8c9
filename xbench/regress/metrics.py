"""Metrics that a suite may name.

*Deterministic* metrics come from plans, counters and the model. The same code gives the same value, so one look at each
side is enough, and counts are compared exactly. *Wall-clock* metrics come from the clock and need repeated launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from xbench.records import Case, Label, MetricName, MetricUnit, Suite
from xbench.stats.regression import pairs_needed

EXACT = 0.0
SMALL = 0.01
"""Threshold of deterministic times and memory. Rounding and allocators change them by less."""

SLOWER = 0.05


class MetricFacts(NamedTuple):
    """Properties of a metric that are known before a measurement."""

    layer: Literal["deterministic", "wall"]
    unit: MetricUnit
    threshold: float
    """Default threshold, as a share. 0: any change counts, in either direction."""
    meaning: str
    label: Label | None = None
    """Label of its values. None: that of the fabric."""


METRICS: dict[MetricName, MetricFacts] = {
    "buckets": MetricFacts("deterministic", "count", EXACT, "buckets of the plan", "simulated"),
    "wire_bytes": MetricFacts("deterministic", "B", EXACT, "bytes a rank hands to collectives in a step"),
    "collectives": MetricFacts("deterministic", "count", EXACT, "collectives that a rank launches in a step"),
    "planned_step": MetricFacts("deterministic", "s", SMALL, "step that the plan predicts", "simulated"),
    "simulated_step": MetricFacts("deterministic", "s", SMALL, "step on more workers, by the model", "simulated"),
    "peak_memory": MetricFacts("deterministic", "B", SMALL, "most memory that a step holds, of the worst rank"),
    "step_time": MetricFacts("wall", "s", SLOWER, "one step, until the last rank is done"),
    "time_per_sample": MetricFacts("wall", "s", SLOWER, "step over the samples of all ranks"),
    "exposed": MetricFacts("wall", "s", SLOWER, "step beyond the compute-only step of the same launch"),
}
"""Every metric, by its name in xbench.toml. Lower is better for all."""


def wall_clock(cases: Sequence[Case]) -> list[Case]:
    """Return the cases that only launches can decide."""
    return [case for case in cases if METRICS[case.metric].layer == "wall"]


def deterministic(cases: Sequence[Case]) -> list[Case]:
    """Return the cases that one look at each side decides."""
    return [case for case in cases if METRICS[case.metric].layer == "deterministic"]


def pairs_for(suite: Suite) -> int:
    """Return the smallest number of launch pairs with which a check can find anything; 0 without wall-clock cases.

    With fewer pairs every wall-clock case would be inconclusive. The command reports this before it launches anything.
    """
    walls = wall_clock(suite.cases())
    return pairs_needed(suite.alpha, len(walls)) if walls else 0
