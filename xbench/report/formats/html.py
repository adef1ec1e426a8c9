"""The report as one HTML file that opens anywhere, without a network.

`page` makes it of one record of any kind, or of several comparisons side by side. What a record's page shows is in
the view of its kind; the figures are plain plotly traces; `assemble` puts template, style and scripts together.
"""

from __future__ import annotations

from collections.abc import Sequence

from xbench.errors import UsageError
from xbench.records import AnyRecord
from xbench.report.kinds import view_of
from xbench.report.page.assemble import assemble, environment, own_file
from xbench.report.page.model import Figure, Page, Table

MAX_ROWS = 20
"""Rows of the table in a notebook cell."""


def page(records: Sequence[AnyRecord]) -> str:
    """The HTML of one record, or of several that can be compared. Raises UsageError where they cannot."""
    return assemble(contents(records))


def render(record: AnyRecord) -> str:
    """The HTML of one record."""
    return page([record])


def contents(records: Sequence[AnyRecord]) -> Page:
    """What stands on the page of these records. Raises UsageError as `page` does."""
    if not records:
        raise UsageError("there is no result to report on")
    if len(records) > 1:
        from xbench.report.kinds.compare_records import several_page

        return several_page(records)
    return view_of(records[0]).page()


def summary(record: AnyRecord) -> str:
    """A notebook cell: the answer and the first table of the page, without style sheets, scripts or plots.

    It is a `<div>` in the notebook's own colours. The table has at most MAX_ROWS rows and says how many it leaves out.
    """
    page = contents([record])
    template = environment().from_string(own_file("summary.html.jinja"))
    return template.render(page=page, table=_first_table(page), most=MAX_ROWS)


def _first_table(page: Page) -> Table | None:
    for section in page.sections:
        for block in section.blocks:
            table = block.table if isinstance(block, Figure) else block
            if isinstance(table, Table):
                return table
    return None
