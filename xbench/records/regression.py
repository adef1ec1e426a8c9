"""Records of `xbench regress`: a baseline with the noise of a machine, and the result of a check.

A *case* is one metric of one mode of one check of the suite. The unit of analysis of a wall-clock case is the launch
pair: one launch each of base and head. Its figure is the logarithm of head over base. `Regression` holds the raw
samples of every launch beside the verdicts. `xbench.regress.judge` can therefore repeat the verdicts from the file
alone.
"""

from __future__ import annotations

import math
import statistics
from typing import Literal, NamedTuple

from pydantic import Field

from xbench.field_types import Count, PositiveCount, Seconds, Text
from xbench.records.parts import Environment, Headed, Interval, Label, Part, WorkloadRecord

MetricName = Literal[
    "buckets",
    "wire_bytes",
    "collectives",
    "planned_step",
    "simulated_step",
    "peak_memory",
    "step_time",
    "time_per_sample",
    "exposed",
]
MetricUnit = Literal["count", "B", "s"]
RegressionVerdict = Literal[
    "regressed", "changed", "improved", "expected", "equivalent", "inconclusive", "not comparable", "missing"
]
SideName = Literal["base", "head"]
MAX_PAIRS = 200
"""Most launch pairs that a check may be asked for."""


class Case(NamedTuple):
    """Subject of one verdict."""

    check: Text
    mode: Text
    metric: MetricName


class CasePart(Part):
    """Base of the parts that belong to one case."""

    check: Text
    mode: Text
    metric: MetricName

    @property
    def case(self) -> Case:
        """The case."""
        return Case(self.check, self.mode, self.metric)


class Check(Part):
    """One `[[regress.check]]` of xbench.toml: a workload, its modes and fabric, and the metrics to watch."""

    name: Text
    workload: Text = Field(description="as on the command line: 'resnet18:batch-size=8'")
    modes: tuple[Text, ...] = Field(min_length=1)
    fabric: Text = Field("local:ranks=2", description="as on the command line")
    metrics: tuple[MetricName, ...] = Field(min_length=1)
    plan_from: Text | None = Field(
        None, description="the record that plans are made from, relative to the suite's folder"
    )
    workers: int | None = Field(
        None, strict=True, ge=2, le=1_000_000, description="of simulated_step; None: as many as were measured"
    )
    expect_change: Text | None = Field(
        None, description="the change of the workload that is meant, in the words of the check that failed"
    )

    def cases(self) -> list[Case]:
        """Return every mode with every metric, in the order of the file."""
        return [Case(self.name, mode, metric) for mode in self.modes for metric in self.metrics]


class Suite(Part):
    """`[regress]` of xbench.toml, validated. `xbench.regress.suite.load_suite` reads it."""

    budget_minutes: float = Field(10.0, strict=True, gt=0, le=1440, description="for one check of the whole suite")
    pairs: int | None = Field(
        None, strict=True, ge=1, le=MAX_PAIRS, description="launch pairs; None: as many as it takes"
    )
    alpha: float = Field(0.01, strict=True, gt=0, le=0.2, description="of one check of the whole suite, by Holm")
    confirm: bool = Field(True, strict=True, description="whether a suspicion needs fresh launches that agree")
    in_turns: bool = Field(
        True,
        strict=True,
        description="whether both launches of a pair are alive at once and take turns, which takes the memory of both",
    )
    thresholds: dict[MetricName, float] = Field(
        {}, description="shares that were asked for, 0.05 from '5 %', 0 from 'exact'; others by default"
    )
    checks: tuple[Check, ...] = Field(min_length=1)

    def cases(self) -> list[Case]:
        """Return the cases of all checks, in the order of the file."""
        return [case for check in self.checks for case in check.cases()]


class Measurement(CasePart):
    """One case in one launch. Deterministic metrics are measured once a side and have no samples."""

    value: float = Field(description="median of the samples, where there are any")
    unit: MetricUnit
    label: Label
    samples: list[float] = Field([], description="raw, by step or block, in the order of time")
    turn_steps: PositiveCount | None = Field(None, description="samples of one turn; None: there were no turns")

    def by_turn(self) -> list[float]:
        """Return the median of each turn's samples; empty if there were no turns."""
        size = self.turn_steps
        if size is None:
            return []
        return [statistics.median(self.samples[at : at + size]) for at in range(0, len(self.samples), size)]


class Failure(Part):
    """Reason why a launch has no measurement of a mode. Reports always show it."""

    check: Text
    mode: Text | None = Field(None, description="None: none of the check's modes was measured")
    side: SideName
    pair: Count | None = Field(None, description="None: of the deterministic layer")
    reason: Text = Field(description="one sentence")


class LaunchPair(Part):
    """One launch each of base and head: at once and in turns, or one after the other."""

    number: Count = Field(ge=0, description="in the order of time")
    first: SideName = Field(description="alternating: base first in even pairs, so that four launches are A-B-B-A")
    in_turns: tuple[Text, ...] = Field((), description="checks whose launches were alive at once and took turns")
    base: list[Measurement]
    head: list[Measurement]
    started_s: Seconds = Field(0.0, description="since the check began")
    took_s: Seconds = Field(0.0, description="both launches with everything around them")

    def ratio(self, case: Case) -> float | None:
        """Return head over base; None if a side did not measure the case, or if base is not above zero.

        With turns, it is the median ratio of turns that followed each other, so that disturbances of the machine
        cancel. Without turns, it is the ratio of the two values. The median is taken over logarithms, so that the two
        sides are treated alike.
        """
        base, head = (next((one for one in side if one.case == case), None) for side in (self.base, self.head))
        if base is None or head is None:
            return None
        turns = list(zip(base.by_turn(), head.by_turn(), strict=False))  # an interrupted side has fewer turns
        if turns and all(one > 0 and other > 0 for one, other in turns):
            return math.exp(statistics.median(math.log(other) - math.log(one) for one, other in turns))
        return head.value / base.value if base.value > 0 else None


class NoiseFloor(CasePart):
    """Noise floor: largest distance from 1 expected of a check's interval for unchanged code (`stats.regression`)."""

    floor: float = Field(ge=0, description="share: 0.03 is 3 %")
    measured_pairs: Count = Field(description="A/A pairs that it was learned from")
    checked_pairs: Count = Field(description="pairs of the check that it holds for")


class Side(Part):
    """One of the two sides of a check."""

    source: Text = Field(description="for people: 'revision 1a2b3c4', 'this tree', 'the baseline results/...'")
    revision: Text | None = Field(None, description="git commit, with '+' where files differ from it")
    environment: Environment
    checks: tuple[Check, ...] = Field(description="as they were when this side was measured")
    workloads: dict[Text, WorkloadRecord] = Field({}, description="by check, as they were built")
    measurements: list[Measurement] = Field([], description="of the deterministic layer")


class Baseline(Headed):
    """Result of `xbench regress baseline`: counts to compare with, and A/A pairs, where base and head are one tree.

    It is stored in parts under results/baselines: what holds on every machine in any/baseline.json, the other counts in
    <machine>/baseline.json, and the pairs in <machine>/noise.json.
    """

    kind: Literal["baseline"] = "baseline"
    xbench: Text = Field(description="version")
    machine: Text = Field(description="the folder's name; 'any' for what holds on every machine")
    complete: bool
    error: Text | None = Field(None, description="why the run ended early, one sentence")
    warnings: list[Text] = []
    suite: Suite
    side: Side
    pairs: list[LaunchPair] = []
    floors: list[NoiseFloor] = Field([], description="for checks with as many pairs as the suite's would have")
    failures: list[Failure] = []


class Threshold(Part):
    """Largest accepted slow-down, and its source."""

    share: float = Field(ge=0, description="0.05 is 5 %; 0: any change")
    source: Literal["default", "suite", "noise floor"]
    floor: float | None = Field(None, description="the noise floor, where it is known: twice that is the least")


class Found(Part):
    """Statistics of the launch pairs of one wall-clock case. Ratios are head over base: above 1, head is slower."""

    pairs: Count
    base: float | None = Field(None, description="median over launches")
    head: float | None = Field(None, description="median over launches")
    ratio: float | None = Field(None, description="Hodges-Lehmann estimate; None without pairs")
    ci95: Interval | None = Field(None, description="exact; None where there are too few pairs for one")
    p_slower: float | None = Field(None, description="one-sided exact signed-rank test")
    p_faster: float | None = Field(None, description="the same of the other side")
    p_slower_holm: float | None = Field(None, description="adjusted over the cases judged together")
    p_faster_holm: float | None = Field(None, description="adjusted over the cases judged together")


class Judged(CasePart):
    """Verdict on one case, and everything that it rests on."""

    unit: MetricUnit
    label: Label | None = Field(None, description="None where nothing was measured")
    verdict: RegressionVerdict
    reason: Text = Field(description="one sentence")
    threshold: Threshold
    base: float | None = None
    head: float | None = None
    found: Found | None = Field(None, description="of a wall-clock case")
    suspected: bool = Field(False, description="whether the first launches alone speak for a regression")
    confirmation: Found | None = Field(None, description="what fresh launches of the suspected cases say")

    @property
    def fails(self) -> bool:
        """True if this case alone makes the check fail, strict or not."""
        return self.verdict in ("regressed", "changed")

    @property
    def wall_clock(self) -> bool:
        """True if launch pairs decided the case."""
        return self.metric in ("step_time", "time_per_sample", "exposed")


class Regression(Headed):
    """Result of `xbench regress check`: both sides, every launch, and the verdicts from `xbench.regress.judge`."""

    kind: Literal["regression"] = "regression"
    xbench: Text = Field(description="version")
    complete: bool
    error: Text | None = Field(None, description="why the run ended early, one sentence")
    warnings: list[Text] = []
    suite: Suite
    against: Literal["revision", "baseline"] = Field(
        description="revision: both sides are measured here, times by turns; baseline: counts that were stored earlier"
    )
    base: Side | None = Field(description="None where there is no baseline")
    head: Side
    layers: tuple[Literal["deterministic", "wall"], ...] = ("deterministic", "wall")
    pairs: list[LaunchPair] = []
    confirm: bool = Field(True, description="whether a suspicion needs fresh launches that agree")
    confirmation: list[LaunchPair] = Field([], description="fresh launches of the suspected cases alone")
    floors: list[NoiseFloor] = []
    failures: list[Failure] = []
    cases: list[Judged] = []
