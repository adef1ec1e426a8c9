"""xbench.toml to a `Suite`: every key, name and unit is checked before anything is launched.

    [regress]
    budget_minutes = 10      # for one check of the whole suite
    pairs = 12               # launch pairs; left out: what the budget allows
    alpha = 0.01             # false alarms of a whole check
    confirm = true           # a suspicion needs fresh launches that agree

    [regress.thresholds]     # how much more is too much: a share with its unit, or "exact"
    step_time = "5 %"
    buckets = "exact"

    [[regress.check]]
    name = "resnet18"
    workload = "resnet18:batch-size=8,image-size=64"
    modes = ["ddp", "optimal"]
    fabric = "local:ranks=2"
    metrics = ["buckets", "planned_step", "step_time"]
    plan_from = "results/resnet18-b14-1gbit.json"

What is wrong is one sentence: the file, the key, where it stands, and the nearest right one.
"""

from __future__ import annotations

from pathlib import Path

from xbench.records import Suite

__all__ = ["load_suite"]


def load_suite(path: Path) -> Suite:
    """Read and check a suite. `plan_from` stays as written: relative to `path.parent`, where it must exist.

    Raises SpecError for a file that is not there or not TOML, an unknown key, metric, workload, mode or fabric (with
    the nearest right one), a value of a wrong kind or unit, a name that stands twice, and a check that lacks what one
    of its metrics needs.
    """
    raise NotImplementedError
