"""Tables for people, in a terminal or a log.

The answer comes first, in words; then the figures it rests on; then what bounds them, how they were made, and what went
wrong. Colour repeats what words already say. Below 84 columns tables become stacked blocks. A mode that failed, or
that trained another network than DDP, shows why and never a time.
"""

from __future__ import annotations

import io

from rich.console import Console

from xbench.records import (
    AnyRecord,
    Baseline,
    ClusterComparison,
    Comparison,
    Convergence,
    LiveRun,
    Noise,
    Regression,
    Restart,
    Scaling,
    Tuned,
    Validation,
)
from xbench.report.advice import RECORD
from xbench.report.console import OFF_TTY_COLUMNS, HarmlessConsole, make_console
from xbench.report.kinds.cluster import render_cluster
from xbench.report.kinds.comparison import render_comparison
from xbench.report.kinds.convergence import render_convergence
from xbench.report.kinds.live import render_live
from xbench.report.kinds.profile import render_profile
from xbench.report.kinds.regression import render_baseline, render_noise, render_regression
from xbench.report.kinds.restart import render_restart
from xbench.report.kinds.scaling import render_scaling
from xbench.report.kinds.tuned import render_tuned
from xbench.report.kinds.validation import render_validation

__all__ = ["make_console", "render", "render_comparison", "render_profile", "show"]


def show(
    record: AnyRecord, console: Console, *, verbose: bool = False, all_layers: bool = False, place: str = RECORD
) -> None:
    """Draw any kind of record; `place` is its path, for commands that are advised.

    `verbose`: every table and note of a comparison, a profile or a scaling.
    """
    if isinstance(record, Comparison):
        render_comparison(record, console, verbose=verbose, place=place)
    elif isinstance(record, Scaling):
        render_scaling(record, console, verbose=verbose)
    elif isinstance(record, Validation):
        render_validation(record, console)
    elif isinstance(record, Convergence):
        render_convergence(record, console)
    elif isinstance(record, Tuned):
        render_tuned(record, console)
    elif isinstance(record, Regression):
        render_regression(record, console)
    elif isinstance(record, Baseline):
        render_baseline(record, console)
    elif isinstance(record, Noise):
        render_noise(record, console)
    elif isinstance(record, ClusterComparison):
        render_cluster(record, console)
    elif isinstance(record, LiveRun):
        render_live(record, console)
    elif isinstance(record, Restart):
        render_restart(record, console)
    else:
        render_profile(record, console, verbose=verbose, all_layers=all_layers)


def render(record: AnyRecord, *, width: int = OFF_TTY_COLUMNS, verbose: bool = False, all_layers: bool = False) -> str:
    """What `show` draws, as plain text of `width` columns."""
    console = HarmlessConsole(file=io.StringIO(), width=width, no_color=True, force_terminal=False, highlight=False,
                      markup=False, emoji=False, _environ={})  # fmt: skip
    show(record, console, verbose=verbose, all_layers=all_layers)
    text = console.file.getvalue() if isinstance(console.file, io.StringIO) else ""
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
