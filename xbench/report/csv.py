"""A record as CSV: its tidy tables (see `tables`), each a text with a heading. `render` is the main table.

RFC 4180 but for line ends, which are those of this system's tools. A missing value is an empty cell.
"""

from __future__ import annotations

import csv
import io

from xbench.records import AnyRecord
from xbench.report.tables import Table
from xbench.report.tables import tables as tidy


def render(record: AnyRecord) -> str:
    """The main table: of a comparison its samples, of a profile its layers."""
    return _text(next(iter(tidy(record).values())))


def tables(record: AnyRecord) -> dict[str, str]:
    """Every table by name, the main one first. One without rows is left out, unless it is the main one."""
    found = tidy(record)
    main = next(iter(found))
    return {name: _text(table) for name, table in found.items() if table or name == main}


def _text(table: Table) -> str:
    if not table:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()
