"""A record's tidy tables (see `tables`) as pandas data frames. pandas is imported here, and only when it is asked for.

A frame has the columns and rows of the table that `xbench report --csv` writes. A missing value is pandas' own: whole
numbers with gaps are `Int64`, truth values with gaps `boolean`, other numbers and text NaN. A column without any value
is `float64`, as `pandas.read_csv` has it, so that frames of several records can be concatenated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xbench.errors import UsageError
from xbench.records import AnyRecord
from xbench.report.formats.csv import tables_with_rows

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
