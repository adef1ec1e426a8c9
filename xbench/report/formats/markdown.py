"""A record as Markdown for a pull request: the answer, one table, and folded details.

The text is GitHub-flavoured. Every time has its label real, emulated or simulated. A failed mode has a row that says
so. Layers, environment and command are in folded sections.
"""

from __future__ import annotations

from xbench.output_files import MARKDOWN_MARK
from xbench.records import AnyRecord
from xbench.report.kinds import view_of


def render(record: AnyRecord) -> str:
    """Return Markdown for any kind of record, ending in a line end."""
    view = view_of(record)
    return "\n\n".join(part for part in [MARKDOWN_MARK, *view.markdown(), view.markdown_command()] if part) + "\n"
