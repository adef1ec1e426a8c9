"""Records of every kind with something hostile put into them, and every format that shows them.

`XBENCH_ALL_CASES=1` tries every value at every place; otherwise each place gets one of them, always the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from xbench.errors import XbenchError
from xbench.records import AnyRecord, loads
from xbench.report import FORMATS
from xbench.report.formats import csv as csv_report
from xbench.report.formats.html import page

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDS = {path.name.removesuffix("-v1.json"): path for path in sorted(GOLDEN.glob("*-v1.json"))}
ALL_CASES = bool(os.environ.get("XBENCH_ALL_CASES"))

Path_ = tuple[str | int, ...]
Value = TypeVar("Value")


def document(kind: str) -> Any:
    """A golden record's JSON."""
    return json.loads(RECORDS[kind].read_text(encoding="utf-8"))


def leaves(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Everything in a document that is neither a list nor a mapping, with its path."""
    items: Any = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else None
    if items is None:
        yield path, value
        return
    for key, inner in items:
        yield from leaves(inner, (*path, key))


def kind_of_place(path: Path_) -> Path_:
    """The path with its places in lists left out: what is true of one sample is true of the next."""
    return tuple("[]" if isinstance(part, int) else part for part in path)


def replaced(value: Any, old: str, new: str) -> Any:
    """The document with a text exchanged wherever it stands, also as a key."""
    if isinstance(value, str):
        return new if value == old else value
    if isinstance(value, list):
        return [replaced(one, old, new) for one in value]
    if isinstance(value, dict):
        return {(new if key == old else key): replaced(one, old, new) for key, one in value.items()}
    return value


def share(values: Sequence[Value], place: int) -> Sequence[Value]:
    """All of them, or the one whose turn it is."""
    return values if ALL_CASES else [values[place % len(values)]]


def read(data: Any) -> AnyRecord | None:
    """The record, or None where it is refused, in one harmless sentence."""
    try:
        return loads(json.dumps(data))
    except XbenchError as error:
        refused = error
    assert is_sentence(refused), str(refused)
    return None


def is_sentence(error: XbenchError) -> bool:
    """True if the user sees one harmless line that is not too long, a short hint, and exit code 2."""
    told, hint = str(error), error.hint or ""
    return error.exit_code == 2 and told.isprintable() and len(told) < 500 and hint.isprintable() and len(hint) <= 300


def shown(record: AnyRecord) -> Iterator[tuple[str, str]]:
    """The record in every format that can show its kind, every table of CSV by itself, and as a notebook shows it."""
    yield "notebook", record._repr_html_()
    for name in FORMATS.names():
        if record.kind not in FORMATS.entry(name).facts.get("kinds", [record.kind]):
            continue
        if name == "html":
            yield name, page([record])
        elif name == "csv":
            for table in csv_report.tables(record).values():
                yield name, table
        else:
            yield name, FORMATS.load(name)(record)


def put(data: Any, path: Path_, value: Any) -> Any:
    """Put a value into a document, and return what was there."""
    for part in path[:-1]:
        data = data[part]
    before, data[path[-1]] = data[path[-1]], value
    return before
