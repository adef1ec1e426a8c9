"""A record as tidy tables: one row an observation, one column a variable, base units in the columns' names.

Every row carries its label (real, emulated, simulated) and, of what was measured on one fabric, what it is of
(workload, fabric, ranks), so tables of several records can be laid on top of each other. What a kind of record has, its
main table first:

| kind | tables |
| --- | --- |
| comparison | `samples` (one row a block; a mode without any has one that says failed), `steps`, `modes`, `layers` |
| profile | `layers`, `samples` (one row a step), `plans` |
| scaling | `points` |
| validation | `points` |
| convergence | `steps`, `epochs`, `modes` |
| tuned | `tried` |
| regression | `cases`, `launches` (one row a case, side and pair) |
| baseline | `launches` |
| noise | `floors`, `launches` |
| cluster | `runs` (one row a policy, restart cost and seed), `results`, `curves` |
| live | `jobs`, `speeds` (one row a job and number of workers), `spans` (one row an incarnation) |
| restart | `restarts`, `results`, `losses` |

As CSV each table is a text with a heading; `render` is the main table.

RFC 4180 but for line ends, which are those of this system's tools. A missing value is an empty cell. A text that a
spreadsheet would take for a formula (it begins with = + - @) gets an apostrophe in front; numbers stay numbers.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from xbench.characters import defused
from xbench.errors import UsageError
from xbench.records import AnyRecord
from xbench.report.kinds import view_of
from xbench.report.view import Table


def render(record: AnyRecord) -> str:
    """The main table: of a comparison its samples, of a profile its layers."""
    return _text(next(iter(tables_with_rows(record).values())))


def tables(record: AnyRecord) -> dict[str, str]:
    """Every table by name, the main one first. One without rows is left out, unless it is the main one."""
    return {name: _text(table) for name, table in tables_with_rows(record).items()}


def tables_with_rows(record: AnyRecord) -> dict[str, Table]:
    """The tables that have rows; the main one comes first and is there even without any."""
    found = view_of(record).tables()
    main = next(iter(found))
    return {name: table for name, table in found.items() if table or name == main}


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


if TYPE_CHECKING:
    from pandas import DataFrame, Series

_WITH_GAPS = {bool: "boolean", int: "Int64"}


def data_frame(record: AnyRecord, table: str) -> DataFrame:
    """The table of that name. Raises UsageError for a table that the record does not have, or where pandas is not."""
    found = tables_with_rows(record)
    if table not in found:
        raise UsageError(f"this {record.kind} record has no table {table!r}: it has {', '.join(found)}")
    pandas, rows = _pandas(), found[table]
    columns = rows[0] if rows else ()
    return pandas.DataFrame({name: _column(pandas, [row[name] for row in rows]) for name in columns})


def _pandas() -> Any:
    try:
        import pandas
    except ModuleNotFoundError:
        raise UsageError("data frames need pandas, which is not installed: python -m pip install pandas") from None
    return pandas


def _column(pandas: Any, values: list[Any]) -> Series:
    values = [None if value == "" else value for value in values]  # an empty text is an empty cell of the CSV
    types = {type(value) for value in values if value is not None}
    if not types:
        return pandas.Series(values, dtype="float64")
    return pandas.Series(values, dtype=_WITH_GAPS.get(types.pop()) if len(types) == 1 and None in values else None)
