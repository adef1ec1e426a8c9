"""A record in a notebook cell: the answer and the first table of its page, without style sheets, scripts or plots.

The template escapes every text. Colours are the notebook's own, light or dark.
"""

from __future__ import annotations

from xbench.records import AnyRecord
from xbench.report.formats.html import contents
from xbench.report.page.assemble import environment, own_file
from xbench.report.page.model import Figure, Page, Table

MAX_ROWS = 20


def summary(record: AnyRecord) -> str:
    """The HTML of one cell, a `<div>`. The table has at most MAX_ROWS rows and says how many it leaves out."""
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
