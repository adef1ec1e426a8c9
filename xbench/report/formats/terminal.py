"""Tables for people, on a terminal or in a log.

The answer comes first, in words. Then come the figures behind it, their bounds, how they were made, and what went
wrong. Colour repeats what words already say. Below 84 columns, tables become stacked blocks. A mode that failed, or
that trained another network than DDP, shows the reason and never a time.
"""

from __future__ import annotations

import io

from rich.console import Console

from xbench.records import AnyRecord
from xbench.report.advice import RECORD
from xbench.report.console import OFF_TTY_COLUMNS, HarmlessConsole
from xbench.report.kinds import view_of
from xbench.report.view import Detail


def show(
    record: AnyRecord, console: Console, *, verbose: bool = False, all_layers: bool = False, place: str = RECORD
) -> None:
    """Draw any kind of record; `place` is its path in suggested commands.

    With `verbose`, a comparison, a profile or a scaling shows every table and note.
    """
    view_of(record, place).draw(console, Detail(verbose, all_layers))


def render(record: AnyRecord, *, width: int = OFF_TTY_COLUMNS, verbose: bool = False, all_layers: bool = False) -> str:
    """Return what `show` draws, as plain text of `width` columns."""
    text = io.StringIO()
    console = HarmlessConsole(file=text, width=width, no_color=True, force_terminal=False, highlight=False,
                              markup=False, emoji=False, _environ={})  # fmt: skip
    show(record, console, verbose=verbose, all_layers=all_layers)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"
