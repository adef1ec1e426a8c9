"""Tables of text: CSV files (plain, gzipped or in a tar archive), and the numbers in their cells.

An invalid file (missing, not text, a column missing) raises SpecError. An invalid cell raises ValueError, whose text is
the reason of a `BadRow`. Blank lines at the end of a file are not rows.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import math
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from xbench.errors import SpecError, listed, nearest
from xbench.record_files import MIB, read_bounded, read_regular
from xbench.text import quoted

MAX_BYTES = 1024 * MIB
"""Largest file, and largest unpacked content [B]."""

MAX_COLUMNS = 10_000
FETCHED = "--trace itp, philly and pollux fetch the public traces"
LARGEST = 1e15
"""Largest number in a cell."""

SMALLEST = 1e-9
"""Smallest number in a cell that has to be above zero."""

_UNPACKED: dict[bytes, Callable[[io.BytesIO], gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile]] = {
    b"\x1f\x8b": lambda packed: gzip.GzipFile(fileobj=packed),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ": lzma.LZMAFile,
}
"""Decompressors by the first bytes of a file."""

_OTHER = {
    b"[": "JSON",
    b"{": "JSON",
    b"<": "HTML or XML",
    b"PK\x03\x04": "a zip archive",
    b"version https://git-lfs": "a pointer of Git LFS",
}
"""Formats that are given in place of a CSV, by the first bytes of the unpacked file."""

T = TypeVar("T")

_BROKEN = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, tarfile.TarError)


@dataclass(frozen=True)
class Table:
    """One CSV. `column` is the index of each column in the cells of a row."""

    file: str
    column: dict[str, int]
    rows: list[tuple[int, list[str]]]
    """Each row with its number in the file, where the header is row 1."""

    def named(self, cells: Sequence[str]) -> dict[str, str]:
        """The cells of a row by column, stripped. Raises ValueError for too few or too many cells."""
        if len(cells) != len(self.column):
            raise ValueError(f"{len(cells)} cells where the header has {len(self.column)}" if cells else "an empty row")
        return {name: cells[index].strip() for name, index in self.column.items()}

    def parsed(self, parsers: Mapping[str, Callable[[str, str], T]]) -> list[tuple[T, ...]]:
        """The values of some columns of all rows, by the parser of each. Raises SpecError for the first bad row."""
        values = []
        for row, cells in self.rows:
            try:
                cell = self.named(cells)
                values.append(tuple(parse(cell[name], name) for name, parse in parsers.items()))
            except ValueError as problem:
                raise SpecError(f"{self.file}: row {row}: {problem}") from None
        return values


def read_table(path: Path, needed: Sequence[str], allowed: Sequence[str] | None = None) -> Table:
    """The CSV at `path` (`.csv`, `.csv.gz`), which has to have the needed columns.

    `allowed`: the only further columns; a name that ends in `_` stands for all that begin with it. Raises SpecError for
    a file that cannot be read, and for a missing, unknown or duplicate column.
    """
    return parse_table(read_text(path), str(path), needed, allowed)


def read_text(path: Path) -> str:
    """The text of a CSV, unpacked if necessary. Raises SpecError for a file of another format."""
    with _as_spec_errors(path):
        data = _unpacked(read_regular(path, MAX_BYTES), path)
    bare = data.removeprefix(codecs.BOM_UTF8).lstrip()
    other = next((name for magic, name in _OTHER.items() if bare.startswith(magic)), None)
    if data[257:262] == b"ustar":
        other = "a tar archive"
    text = "" if other is not None else _decoded(data, str(path))
    if "\0" in text:
        other = "binary data"
    if other is not None:
        raise SpecError(
            f"{path} is {other}, and not a CSV",
            hint=f"give a CSV; {FETCHED}",
        )
    return text


def is_archive(path: Path) -> bool:
    """True for a tar archive, packed or not. Raises SpecError for a file that cannot be unpacked."""
    with _as_spec_errors(path):
        return path.is_file() and tarfile.is_tarfile(path)


def read_archive(path: Path) -> dict[str, str]:
    """The text of each `.csv` of a tar archive, by its name without folders, in order of names. Raises SpecError."""
    texts = {}
    with (
        _as_spec_errors(path),
        tarfile.open(fileobj=io.BytesIO(_unpacked(read_regular(path, MAX_BYTES), path)), mode="r:") as archive,
    ):
        for member in archive:
            opened = archive.extractfile(member) if member.isfile() and member.name.endswith(".csv") else None
            if opened is not None:
                name = member.name.rsplit("/", 1)[-1]
                texts[name] = _decoded(opened.read(), f"{path}/{name}")
    if not texts:
        raise SpecError(f"{path} holds no .csv file")
    return dict(sorted(texts.items()))


@contextmanager
def _as_spec_errors(path: Path) -> Iterator[None]:
    """Turn errors of a file into a SpecError."""
    try:
        yield
    except FileNotFoundError:
        raise SpecError(f"there is no file {path}", hint=FETCHED) from None
    except _BROKEN as error:
        raise SpecError(f"{path} cannot be unpacked: {error}") from None
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise SpecError(f"{path} needs more memory than there is") from None


def _unpacked(data: bytes, path: Path) -> bytes:
    """The data, decompressed if necessary. Raises OSError for more than MAX_BYTES."""
    default = _UNPACKED[b"\x1f\x8b"] if path.name.endswith(".gz") else None
    opener = next((opener for magic, opener in _UNPACKED.items() if data.startswith(magic)), default)
    if opener is None:
        return data
    with opener(io.BytesIO(data)) as stream:
        return read_bounded(stream, MAX_BYTES, str(path))


def _decoded(data: bytes, file: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SpecError(f"{file} is not text in UTF-8") from None


def parse_table(text: str, file: str, needed: Sequence[str], allowed: Sequence[str] | None = None) -> Table:
    """Parse the text of a CSV as `read_table` does. `file`: its name in errors."""
    try:
        records = list(csv.reader(io.StringIO(text, newline="\n")))
    except csv.Error as error:
        raise SpecError(f"{file} is no CSV: {error}") from None
    while records and not records[-1]:
        records.pop()
    names = [name.strip() for name in records[0]] if records else []
    if not names:
        raise SpecError(f"{file} is empty", hint=f"its first row names its columns: {','.join(needed)}")
    for name in needed:
        if name not in names:
            close = nearest(name, names)
            hint = f"{close!r} is there" if close else f"it needs {', '.join(needed)}, and has {listed(names, 100)}"
            raise SpecError(f"{file} has no column {name!r}", hint=hint)
    if len(names) > MAX_COLUMNS:
        raise SpecError(f"{file} has {len(names)} columns, and at most {MAX_COLUMNS} are read")
    duplicate = next((name for name, count in Counter(names).items() if count > 1), None)
    if duplicate is not None:
        raise SpecError(f"{file} has two columns {quoted(duplicate)}")
    patterns = () if allowed is None else (*needed, *allowed)
    for name in names if patterns else ():
        if not any(name == pattern or (pattern.endswith("_") and name.startswith(pattern)) for pattern in patterns):
            close = nearest(name, patterns)
            hint = f"did you mean {close!r}?" if close else f"it takes {listed(patterns)}"
            raise SpecError(f"{file} has an unknown column {quoted(name)}", hint=hint)
    return Table(file, {name: index for index, name in enumerate(names)}, list(enumerate(records[1:], 2)))


def number(cell: str, what: str) -> float:
    """A number with an absolute value of at most LARGEST. Raises ValueError that names the column."""
    try:
        value = float(cell)
    except ValueError:
        raise ValueError(f"{what} {quoted(cell)} is not a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{what} {quoted(cell)} is not finite")
    if abs(value) > LARGEST:
        raise ValueError(f"{what} {quoted(cell)} is beyond {LARGEST:g}")
    return value


def whole(cell: str, what: str) -> int:
    """A whole number, '4' or '4.0'. Raises ValueError that names the column."""
    value = number(cell, what)
    if not value.is_integer():
        raise ValueError(f"{what} {quoted(cell)} is not a whole number")
    return int(value)


def gpus_of(cell: str, what: str) -> int:
    """A whole number of GPUs, at least one. Raises ValueError that names the column."""
    value = whole(cell, what)
    if value < 1:
        raise ValueError(f"{what} {cell!r} is less than one")
    return value


def above_zero(cell: str, what: str) -> float:
    """A number from SMALLEST to LARGEST. Raises ValueError that names the column."""
    value = number(cell, what)
    if value <= 0:
        raise ValueError(f"{what} {quoted(cell)} is not above zero")
    if value < SMALLEST:
        raise ValueError(f"{what} {quoted(cell)} is below {SMALLEST:g}")
    return value
