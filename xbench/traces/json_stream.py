"""Stream the events of a Chrome trace from a JSON file, plain or gzip, in constant memory.

A trace is an object with a `traceEvents` array, or the array alone. Every other key of the object is kept in
`header`. The reader decodes one event at a time, so a file may be larger than the memory.
"""

from __future__ import annotations

import json
import re
import zlib
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from xbench.errors import UsageError

CHUNK_BYTES = 1 << 20
MAX_VALUE_CHARACTERS = 1 << 26
"""A single value longer than this is not part of a profiler trace."""

EVENTS = "traceEvents"
_SKIP = re.compile(r"[\s,]*")
_GZIP = b"\x1f\x8b"
_GZIP_WINDOW = 31  # zlib: a gzip header and the largest window


class TraceFile:
    """One trace file. Iterate over `events()` first; `header` and `is_truncated` are complete afterwards."""

    def __init__(self, path: Path, on_progress: Callable[[float], None] | None = None) -> None:
        """`on_progress` is called with the share of the file that has been read, in [0, 1]."""
        self.path = path
        self.header: dict[str, Any] = {}
        self.is_truncated = False
        self._on_progress = on_progress
        self._text = ""
        self._at = 0
        self._ended = False
        self._decode = json.JSONDecoder(strict=False).raw_decode

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events in file order. Raises UsageError for a file that is not a trace or cannot be read."""
        try:
            size = max(1, self.path.stat().st_size)
            with self.path.open("rb") as raw:
                self._refill = _chunks(raw, size, self._on_progress)
                yield from self._document()
        except (OSError, zlib.error) as error:
            raise UsageError(f"{self.path} cannot be read: {error}") from error

    def _document(self) -> Iterator[dict[str, Any]]:
        first = self._peek()
        if first == "[":
            self._at += 1
            yield from self._array()
        elif first == "{":
            self._at += 1
            yield from self._object()
        else:
            raise self._foreign("it is not JSON")

    def _object(self) -> Iterator[dict[str, Any]]:
        found = False
        while (char := self._peek()) not in ("}", ""):
            key = self._value() if char == '"' else None
            if not isinstance(key, str) or self._peek() != ":":
                if self._ended and self._peek() == "":
                    break
                raise self._foreign("it is not JSON")
            self._at += 1
            if key == EVENTS and self._peek() == "[":
                self._at += 1
                found = True
                yield from self._array()
            else:
                self.header[key] = self._value()
        if char == "":
            self.is_truncated = True
        if not found:
            raise self._foreign(f"it {'ends before its' if self.is_truncated else 'has no'} {EVENTS}")

    def _array(self) -> Iterator[dict[str, Any]]:
        while (char := self._peek()) == "{":
            value = self._value()
            if value is not None:
                yield value
        if char == "]":
            self._at += 1
        elif char == "":
            self.is_truncated = True
        else:
            raise self._foreign("its events are not objects")

    def _peek(self) -> str:
        """Return the next character that is neither white space nor a comma; empty at the end of the file."""
        while True:
            match = _SKIP.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read_more():
                return ""

    def _value(self) -> Any:
        """Decode the value at the current position; None where the file ends inside it."""
        self._peek()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except (ValueError, RecursionError):
                value, end = None, len(self._text)
            # A number at the end of the text may go on in the next chunk; anything else ends with a mark of its own.
            if end < len(self._text) or isinstance(value, (dict, list, str)):
                self._at = end
                return value
            if len(self._text) - self._at > MAX_VALUE_CHARACTERS:
                raise self._foreign("it is not JSON")
            if not self._read_more():
                self._at = len(self._text)
                self.is_truncated = self.is_truncated or value is None
                return value

    def _read_more(self) -> bool:
        chunk = next(self._refill, None)
        if chunk is None:
            self._ended = True
            return False
        self._text = self._text[self._at :] + chunk
        self._at = 0
        return True

    def _foreign(self, why: str) -> UsageError:
        return UsageError(
            f"{self.path} is not a profiler trace: {why}",
            hint="give the JSON that torch.profiler's export_chrome_trace wrote",
        )


def _chunks(raw: IO[bytes], size: int, on_progress: Callable[[float], None] | None) -> Iterator[str]:
    """Yield the file's text in chunks; a gzip file that ends early gives all that it holds."""
    unpack = _unpacked if raw.read(2) == _GZIP else iter
    raw.seek(0)
    decode = getincrementaldecoder("utf-8")(errors="replace").decode
    for data in unpack(iter(lambda: raw.read(CHUNK_BYTES), b"")):
        if on_progress is not None:
            on_progress(min(1.0, raw.tell() / size))
        yield decode(data)


def _unpacked(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Decompress a gzip file of one or more members."""
    member = zlib.decompressobj(wbits=_GZIP_WINDOW)
    for chunk in chunks:
        while chunk:
            yield member.decompress(chunk)
            chunk = member.unused_data
            if chunk:
                member = zlib.decompressobj(wbits=_GZIP_WINDOW)
