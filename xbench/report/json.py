"""The record itself, as JSON text: what `--json` writes and `records.load` reads."""

from __future__ import annotations

from xbench.records import AnyRecord, dump


def render(record: AnyRecord) -> str:
    """The record as JSON text, in the schema that `xbench schema` prints."""
    return dump(record)
