"""Hand-made checks: a suite of two checks, launches whose ratios are known, and every verdict there is."""

from __future__ import annotations

from collections.abc import Mapping

from xbench.records import (
    Baseline,
    Case,
    Check,
    Environment,
    Failure,
    LaunchPair,
    Measurement,
    Regression,
    Side,
    Suite,
    WorkloadRecord,
)
from xbench.regress import METRICS, floors_of, judge
from xbench.spec import WorkloadSpec

ENVIRONMENT = Environment(
    hostname="bench1", cpu="AMD EPYC 7543 32-Core Processor", cores=8, memory_bytes=32 * 1024**3, python="3.11.7",
    torch="2.15.0", device="cpu", device_count=0, xbench="0.1.0", commit="0123456789abcdef0123456789abcdef01234567",
    facts={"kernel": "6.1.0", "governor": "performance"},
)  # fmt: skip
WORKLOAD = WorkloadRecord(
    spec=WorkloadSpec(name="resnet18", batch_size=8, image_size=64), title="resnet18", parameters=11_689_512,
    tensors=62, grad_bytes=46_758_048, batch_size=8, input="3×64×64 images",
)  # fmt: skip
RESNET = Check(
    name="resnet18", workload="resnet18:batch-size=8,image-size=64", modes=("ddp", "optimal"),
    metrics=("buckets", "planned_step", "step_time"), plan_from="results/resnet18-b14-1gbit.json",
)  # fmt: skip
SMALL = Check(name="small", workload="synthetic:layers=8", modes=("wfbp",), metrics=("collectives", "step_time"))
SUITE = Suite(checks=(RESNET, SMALL))
TIMED = [case for case in SUITE.cases() if case.metric == "step_time"]
DDP, OPTIMAL, WFBP = TIMED

SPREAD = (-0.021, 0.012, -0.009, 0.018, 0.001, 0.015, -0.014, 0.006, -0.004, 0.008)
"""Of ten pairs' log ratios, about what a quiet machine shows: as much above zero as below."""


def side(source: str, **changes: object) -> Side:
    """Both checks with their deterministic figures: three buckets, a planned step of 0.4 s, eight collectives."""
    figures = {"buckets": 3.0, "planned_step": 0.4, "collectives": 8.0}
    cases = [case for case in SUITE.cases() if case.metric in figures]
    made = Side(
        source=source, revision=None, environment=ENVIRONMENT, checks=SUITE.checks,
        workloads={"resnet18": WORKLOAD},
        measurements=[measured(case, figures[case.metric]) for case in cases],
    )  # fmt: skip
    return made.model_copy(update=changes)


def measured(case: Case, value: float) -> Measurement:
    """One case in one launch."""
    facts = METRICS[case.metric]
    samples = [value, value] if facts.layer == "wall" else []
    return Measurement(**case._asdict(), value=value, unit=facts.unit, label=facts.label or "real", samples=samples)


def pairs(ratios: Mapping[Case, float], count: int = 10, base_s: float = 0.2) -> list[LaunchPair]:
    """Launch pairs whose ratios have these centres and that spread."""
    return [
        LaunchPair(
            number=number,
            first="head" if number % 2 else "base",
            base=[measured(case, base_s) for case in ratios],
            head=[measured(case, base_s * ratio * (1 + SPREAD[number])) for case, ratio in ratios.items()],
            started_s=20.0 * number,
            took_s=19.0,
        )
        for number in range(count)
    ]


def regression(ratios: Mapping[Case, float] | None = None, *, count: int = 10, **changes: object) -> Regression:
    """A judged check of the suite: nothing changed unless it says so."""
    asked = dict.fromkeys(TIMED, 1.0) | dict(ratios or {})
    base = side("revision 1a2b3c4", revision="1a2b3c4" + 33 * "0")
    head = side("this tree", revision="9f8e7d6c" + 32 * "0" + "+")
    made = Regression(
        created="2026-03-01T12:00:00Z", command="xbench regress check --base main", xbench="0.1.0", complete=True,
        suite=SUITE, against="revision", base=base, head=head, pairs=pairs(asked, count),
    )  # fmt: skip
    return judge(made.model_copy(update=changes))


def slower() -> Regression:
    """optimal is 12 % slower, twice over, and has a bucket more; ddp is faster; wfbp failed in head."""
    head = side("this tree", revision="9f8e7d6c" + 32 * "0" + "+")
    changed = [
        one.model_copy(update={"value": 4.0}) if one.case == Case("resnet18", "optimal", "buckets") else one
        for one in head.measurements
    ]
    ratios = {DDP: 0.9, OPTIMAL: 1.12}
    return judge(
        regression().model_copy(
            update={
                "head": head.model_copy(update={"measurements": changed}),
                "pairs": pairs(ratios),
                "confirmation": pairs({OPTIMAL: 1.11}),
                "failures": [Failure(check="small", mode="wfbp", side="head", pair=0, reason="rank 1 died: SIGKILL")],
                "floors": floors_of(SUITE, pairs(dict.fromkeys(TIMED, 1.0)), 10),
            }
        )
    )


def baseline() -> Baseline:
    """What `xbench regress baseline` would keep of it: wfbp was measured too seldom to know its noise."""
    found = pairs(dict.fromkeys((DDP, OPTIMAL), 1.0))
    return Baseline(
        created="2026-03-01T12:00:00Z", command="xbench regress baseline", xbench="0.1.0",
        machine="3f9a1c02-77d0b1e4", complete=True, suite=SUITE, side=side("this tree"), pairs=found,
        floors=floors_of(SUITE, found, 10),
    )  # fmt: skip
