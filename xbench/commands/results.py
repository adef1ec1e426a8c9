"""Paths of results as users type them: a record, the folder of a run, or `latest` for the newest run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from xbench.commands.completing import LATEST
from xbench.config import RUNS
from xbench.errors import SpecError
from xbench.record_files import run_folders


class ResultPath(click.Path):
    """Path of a result. `latest` is the newest run in results/runs, unless a file of that name exists."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType.convert`. Raises SpecError if there is no run."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        return latest() if str(path) == LATEST and not path.exists() else path


def latest() -> Path:
    """Return the folder of the newest run in results/runs. Raises SpecError if there is none."""
    runs = run_folders(RUNS)
    if not runs:
        raise SpecError(f"there is no run in {RUNS}", hint="name a result, or make one: xbench compare")
    return runs[0]
