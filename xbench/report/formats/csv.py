"""Tidy tables of a record: one row per observation, one column per variable, units in the columns' names.

docs/report.md lists the tables of each kind of record; the first is the main one, which `render` returns. Every row
holds its label (real, emulated or simulated). Rows measured on one fabric also hold workload, fabric and ranks, so
tables of several records can be appended to each other.

The format is RFC 4180, but lines end in a newline alone. A missing value is an empty cell. A text that a spreadsheet
would read as a formula (it begins with = + - @) gets an apostrophe in front. Numbers stay numbers.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from xbench.errors import UsageError
from xbench.records import AnyRecord
from xbench.report.kinds import view_of
from xbench.report.view import Rows
from xbench.text import defused


def render(record: AnyRecord) -> str:
    """Return the main table: a comparison's samples, a profile's layers."""
    return _text(next(iter(tables_with_rows(record).values())))


def tables(record: AnyRecord) -> dict[str, str]:
    """Return every table by name, the main one first. Tables without rows are omitted, except the main one."""
    return {name: _text(table) for name, table in tables_with_rows(record).items()}


def tables_with_rows(record: AnyRecord) -> dict[str, Rows]:
    """Return the tables that have rows. The main one comes first and is always there."""
    found = view_of(record).tables()
    main = next(iter(found))
    return {name: table for name, table in found.items() if table or name == main}


def _text(table: Rows) -> str:
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


if TYPE_CHECKING:
    from pandas import DataFrame, Series

_WITH_GAPS = {bool: "boolean", int: "Int64"}


def data_frame(record: AnyRecord, table: str) -> DataFrame:
    """Return a table as a data frame. Raises UsageError for an unknown table, or if pandas is not installed."""
    found = tables_with_rows(record)
    if table not in found:
        raise UsageError(f"this {record.kind} record has no table {table!r}: it has {', '.join(found)}")
    try:
        import pandas
    except ModuleNotFoundError:
        raise UsageError("data frames need pandas, which is not installed: python -m pip install pandas") from None
    rows = found[table]
    columns = rows[0] if rows else ()
    return pandas.DataFrame({name: _column(pandas, [row[name] for row in rows]) for name in columns})


def _column(pandas: Any, values: list[Any]) -> Series:
    values = [None if value == "" else value for value in values]  # an empty text is an empty cell of the CSV
    types = {type(value) for value in values if value is not None}
    if not types:
        return pandas.Series(values, dtype="float64")
    return pandas.Series(values, dtype=_WITH_GAPS.get(types.pop()) if len(types) == 1 and None in values else None)
