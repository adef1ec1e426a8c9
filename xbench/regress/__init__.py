"""The gate of `xbench regress`, but for the measuring: what is watched, what may be compared, and the verdicts.

| file | what it holds |
| --- | --- |
| `metrics` | the metrics that a suite may name: layer, unit, default threshold |
| `suite` | xbench.toml to a checked `Suite` |
| `comparable` | whether the workload changed, and which fields keep two sides from being compared |
| `judge` | a `Regression` with its raw samples to one with verdicts; the exit code |

    suite = load_suite(Path("xbench.toml"))
    ...                                       # runtime.regress looks at both sides
    worth_timing(regression)                  # the checks that launches could decide
    regression = judge(regression)            # the first launches
    suspected(regression)                     # what fresh launches have to confirm
    regression = judge(regression.model_copy(update={"confirmation": pairs}))
    return exit_code(regression, strict=False)

Nothing here imports torch.
"""

from __future__ import annotations

from xbench.regress.judge import exit_code, floors_of, judge, launch_floors, suspected, worth_timing
from xbench.regress.metrics import METRICS, MetricFacts, pairs_for
from xbench.regress.suite import load_suite

__all__ = [
    "METRICS",
    "MetricFacts",
    "exit_code",
    "floors_of",
    "judge",
    "launch_floors",
    "load_suite",
    "pairs_for",
    "suspected",
    "worth_timing",
]
