"""Performance gate, `xbench regress`: suites, measurement of two revisions, and verdicts.

| file | content |
| --- | --- |
| `metrics` | the metrics that a suite may name, their values in a job's result, and whether two sides compare |
| `suite` | xbench.toml to a checked `Suite` |
| `judge` | a `Regression` with its raw samples to one with verdicts; the exit code |
| `check`, `baseline` | the flows, and the folder of baselines |
| `session` | the request, the length of a launch and the number of pairs, and launches in A-B-B-A order |
| `alternation` | turns of two launches that run at once |
| `checkout` | revisions in temporary working trees, and the processes that carry out their jobs |
| `protocol` | versioned jobs and results between revisions |
| `worker_command` | a job in a revision's own xbench: the workload and its plans, and one launch |
| `rank` | one rank of such a launch, with counts of collectives and peak memory |
| `init_files` | the files that `xbench regress init` writes |

    check → checkout → `python -m xbench regress launch ORDER ANSWER` in the checkout → ranks

Base and head share no memory, no imports, and no cache but the machine's. Importing this package does not import torch.
"""

from __future__ import annotations

from xbench.regress.judge import exit_code, floors_of, judge, suspected, worth_timing
from xbench.regress.metrics import METRICS, MetricFacts, pairs_for
from xbench.regress.suite import load_suite

__all__ = ["METRICS", "MetricFacts", "exit_code", "floors_of", "judge", "load_suite", "pairs_for",
           "suspected", "worth_timing"]  # fmt: skip
