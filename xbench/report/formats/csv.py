"""A record as CSV: its tidy tables (see `tables`), each a text with a heading. `render` is the main table.

RFC 4180 but for line ends, which are those of this system's tools. A missing value is an empty cell. A text that a
spreadsheet would take for a formula (it begins with = + - @) gets an apostrophe in front; numbers stay numbers.
"""

from __future__ import annotations

import csv
import io
from typing import Any

from xbench.characters import defused
from xbench.records import AnyRecord
from xbench.report.formats.tables import Table, tables_with_rows


def render(record: AnyRecord) -> str:
    """The main table: of a comparison its samples, of a profile its layers."""
    return _text(next(iter(tables_with_rows(record).values())))


def tables(record: AnyRecord) -> dict[str, str]:
    """Every table by name, the main one first. One without rows is left out, unless it is the main one."""
    return {name: _text(table) for name, table in tables_with_rows(record).items()}


def _text(table: Table) -> str:
    if not table:
        return ""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_cell, table[0]))
    writer.writerows([_cell(row[name]) for name in table[0]] for row in table)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = defused(value)
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text
