"""Request of `xbench regress`, and the steps that all of its flows share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from rich.console import Console

from xbench.errors import RunError, SpecError, XbenchError
from xbench.record_files import results_folder
from xbench.records import Suite
from xbench.regress.checkout import Checkout, Repository, short
from xbench.regress.metrics import layer_of
from xbench.regress.session import Measuring
from xbench.runs.run_folder import check_output

Layer = Literal["deterministic", "wall"]
BOTH: tuple[Layer, ...] = ("deterministic", "wall")


@dataclass
class RegressRequest:
    """Parsed and checked request. `suite` holds the checks to run; `folder` is that of its file.

    `base` is a git revision, `baseline` a stored one.
    """

    suite: Suite
    folder: Path
    layers: tuple[Layer, ...] = BOTH
    base: str | None = None
    baseline: Path | None = None
    pairs: int | None = None
    confirm: bool = True
    device: str = "auto"
    timeout_s: float = 120.0
    output: Path = field(default_factory=results_folder)
    command: str = "xbench regress"


def speaker(console: Console) -> Callable[[str], None]:
    """Return a function that prints a line of progress."""
    return partial(console.print, highlight=False, markup=False, soft_wrap=True)


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
    )


def head_tree(request: RegressRequest) -> tuple[Checkout, str | None]:
    """Return the working tree as a side, and its revision if it has one."""
    folder = request.folder.resolve()
    try:
        repository = Repository.around(folder)
    except SpecError:
        return Checkout("head", folder, folder, folder, "this tree"), None
    revision = repository.head()
    title = f"this tree ({short(revision)})" if revision is not None else "this tree"
    return Checkout("head", repository.root, folder, repository.root, title), revision


def nothing_measured(measuring: Measuring, error: XbenchError | None) -> XbenchError:
    """Return the reason why there is nothing to record."""
    if error is not None:
        return error
    reason = measuring.failures[0].reason if measuring.failures else "no launch gave an answer"
    return RunError(f"nothing could be measured: {reason}")
