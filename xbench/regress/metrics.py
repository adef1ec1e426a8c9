"""The metrics that a suite may name.

*Deterministic* metrics come from plans, counters and the model: the same code gives the same figure, so one look a side
is enough, and counts gate exactly. *Wall-clock* metrics come from the clock: only repeated launches can say anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from xbench.records import Case, Label, MetricName, MetricUnit, Suite
from xbench.stats.regression import pairs_needed

EXACT = 0.0
SMALL = 0.01
"""Of deterministic times and memory: rounding and allocators move them by less."""

SLOWER = 0.05


class MetricFacts(NamedTuple):
    """What is known of a metric before anything is measured."""

    layer: Literal["deterministic", "wall"]
    unit: MetricUnit
    threshold: float
    """Share by default; 0: any change counts, in either direction."""
    meaning: str
    label: Label | None = None
    """None: that of the fabric."""


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
    """Those that only launches can decide."""
    return [case for case in cases if METRICS[case.metric].layer == "wall"]


def deterministic(cases: Sequence[Case]) -> list[Case]:
    """Those that one look a side decides."""
    return [case for case in cases if METRICS[case.metric].layer == "deterministic"]


def pairs_for(suite: Suite) -> int:
    """The fewest launch pairs with which a check of this suite can find anything; 0 where nothing needs a clock.

    Only wall-clock cases count. With fewer pairs every one of them is bound to come out inconclusive, so the command
    says so before it launches anything.
    """
    walls = wall_clock(suite.cases())
    return pairs_needed(suite.alpha, len(walls)) if walls else 0
