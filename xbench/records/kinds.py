"""Table of record kinds: each kind's name, its class, and the code that rebuilds a killed run's record.

A new kind is one file in this package and one row in `KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, TypeAdapter

from xbench.records.cluster import ClusterComparison
from xbench.records.comparison import Comparison
from xbench.records.convergence import Convergence
from xbench.records.live import LiveRun
from xbench.records.profile import Profile
from xbench.records.regression import Baseline, Noise, Regression
from xbench.records.restart import Restart
from xbench.records.scaling import Scaling
from xbench.records.tuned import Tuned
from xbench.records.validation import Validation
from xbench.registry import Registry

AnyRecord = (
    Profile
    | Comparison
    | Scaling
    | Validation
    | Tuned
    | Convergence
    | Baseline
    | Noise
    | Regression
    | ClusterComparison
    | LiveRun
    | Restart
)
"""Any record that `load` reads and `xbench report` shows."""

KINDS: dict[str, type[AnyRecord]] = {kind.model_fields["kind"].default: kind for kind in AnyRecord.__args__}
"""Class of each kind of record, by the value of its `kind` field."""

R = TypeVar("R")


def of_kind(record: object, kind: type[R]) -> R | None:
    """Return the record if it is of this kind, else None."""
    return record if isinstance(record, kind) else None


ADAPTER: TypeAdapter[AnyRecord] = TypeAdapter(Annotated[AnyRecord, Field(discriminator="kind")])

REBUILDERS: Registry[Callable[[Path], AnyRecord]] = Registry("kind of run", listing="docs/report.md")
"""Functions that rebuild a killed run's record from its journals, by the kind in the run's `frame.json`."""
REBUILDERS.add("measured", "xbench.runs.rebuild:measured", "profile, compare, tune")
REBUILDERS.add("convergence", "xbench.runs.rebuild:convergence", "converge")
REBUILDERS.add("restart", "xbench.cluster.live.restart_result:rebuilt", "cluster restart")
REBUILDERS.add("live", "xbench.cluster.live.outcome:rebuilt", "cluster run")
