"""Request of `xbench regress`, and the steps that all of its flows share."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from xbench.errors import RunError, SpecError, XbenchError
from xbench.records import Suite
from xbench.regress.checkout import Repository, short
from xbench.regress.measurements import layer_of
from xbench.regress.revision_runner import Checkout
from xbench.regress.session import Measuring
from xbench.runs.execute import check_output

Layer = Literal["deterministic", "wall"]
BOTH: tuple[Layer, ...] = ("deterministic", "wall")


@dataclass
class RegressRequest:
    """Parsed and checked request. `suite` holds the checks to run; `folder` is that of its file.

    `base` is a git revision, `baseline` a stored one. `slow_step` slows head, as a test of the gate.
    """

    suite: Suite
    folder: Path
    layers: tuple[Layer, ...] = BOTH
    base: str | None = None
    baseline: Path | None = None
    pairs: int | None = None
    confirm: bool = True
    slow_step: float = 1.0
    device: str = "auto"
    timeout_s: float = 120.0
    output: Path = Path("results/runs")
    command: str = "xbench regress"


def speaker(console: Console) -> Callable[[str], None]:
    """Return a function that prints lines of progress."""

    def say(sentence: str) -> None:
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    return say


def check_place(folder: Path) -> None:
    """Raise SpecError if the folder of baselines is not writable, before anything is measured."""
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise SpecError(f"the baseline would be kept under {str(folder)!r}, and {str(there)!r} cannot be written")


def measuring_of(request: RegressRequest, say: Callable[[str], None]) -> Measuring:
    """Return the `Measuring` of the suite. Raises SpecError if it has nothing in the requested layers."""
    check_output(request.output)
    checks = request.suite.checks
    if not any(layer_of(check, layer) for check in checks for layer in request.layers):
        raise SpecError(
            f"--layer: no check of the suite has a {request.layers[0]} metric", hint="--layer both takes all of them"
        )
    return Measuring(
        request.suite,
        {check.name: str((request.folder / check.plan_from).resolve()) for check in checks if check.plan_from},
        say,
        layers=request.layers,
        device=request.device,
        timeout_s=request.timeout_s,
        slow_step=request.slow_step,
    )


def head_tree(request: RegressRequest) -> tuple[Checkout, Repository | None, str | None]:
    """Return the working tree as a side, with its repository and revision if it has them."""
    folder = request.folder.resolve()
    try:
        repository = Repository.around(folder)
    except SpecError:
        return Checkout("head", folder, folder, folder, "this tree"), None, None
    revision = repository.head()
    title = f"this tree ({short(revision)})" if revision is not None else "this tree"
    return Checkout("head", repository.root, folder, repository.root, title), repository, revision


def nothing_measured(measuring: Measuring, error: XbenchError | None) -> XbenchError:
    """Return the reason why there is nothing to record."""
    if error is not None:
        return error
    reason = measuring.failures[0].reason if measuring.failures else "no launch gave an answer"
    return RunError(f"nothing could be measured: {reason}")
