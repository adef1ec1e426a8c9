"""Stream the events of a Chrome trace from a JSON file, plain or gzip, in constant memory.

A trace is an object with a `traceEvents` array, or the array alone. Every other key of the object is kept in
`header`. The reader decodes one event at a time, so a file may be larger than the memory.

Profilers write numbers and names that are not JSON (`inf`, bare quotes). A word in place of a value counts as null. Any
other broken event is left out and counted, and reading goes on with the next one.
"""

from __future__ import annotations

import json
import re
import zlib
from codecs import getincrementaldecoder
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import IO, Any

from xbench.errors import UsageError

CHUNK_BYTES = 1 << 20
MAX_VALUE_CHARACTERS = 1 << 26
"""A single value longer than this is not part of a profiler trace."""

MAX_STRING_CHARACTERS = 1 << 20
"""An error is certain once this much text follows it: no string of a trace that is not yet closed is so long."""

EVENTS = "traceEvents"
_BROKEN: Any = object()
_SKIP = re.compile(r"[\s,]*")
_WORD = re.compile(r"[^\s,:\[\]{}\"]+")
_OPENING = re.compile(r'\{\s*"(ph"\s*:)?')
_CLOSING = re.compile(r'\}\s*\](?=\s*(?:,\s*"|\}|$))')
_EVENTS_OPENING = re.compile(rf'"{EVENTS}"\s*:\s*\[')
_GZIP = b"\x1f\x8b"
_PACKED = {b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd"}
_GZIP_WINDOW = 31  # zlib: a gzip header and the largest window


class TraceFile:
    """One trace file: an iterable of its events. The other attributes are complete after an iteration."""

    def __init__(self, path: Path, on_progress: Callable[[float], None] | None = None) -> None:
        """`on_progress` is called with the share of the file that has been read, in [0, 1]."""
        self.path = path
        self.header: dict[str, Any] = {}
        self.is_truncated = False
        """True where the file ends before its events do."""
        self.broken: list[str] = []
        """Where something was left out that is no JSON: 'event 7', 'the header'."""
        self._on_progress = on_progress
        self._text = ""
        self._at = 0
        self._decode = json.JSONDecoder(strict=False).raw_decode

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the events in file order. Raises UsageError for a file that is not a trace or cannot be read."""
        self.header.clear()
        self.broken.clear()
        self.is_truncated, self._text, self._at = False, "", 0
        try:
            size = max(1, self.path.stat().st_size)
            with self.path.open("rb") as raw:
                self._refill = _chunks(raw, size, self._on_progress)
                head = raw.read(6)
                raw.seek(0)
                packed = next((name for magic, name in _PACKED.items() if head.startswith(magic)), None)
                if packed is not None:
                    raise UsageError(f"{self.path} is packed by {packed}", hint="unpack it; JSON and gzip are read")
                yield from self._document()
        except (OSError, zlib.error) as error:
            raise UsageError(f"{self.path} cannot be read: {error}") from error

    def _document(self) -> Iterator[dict[str, Any]]:
        first = self._peek()
        if first not in ("[", "{"):
            raise self._foreign("it is not JSON")
        self._at += 1
        ended = yield from self._array() if first == "[" else self._object()
        if ended and self._peek() in ("{", "["):
            raise UsageError(f"{self.path} holds more than one trace", hint="give each trace as a file of its own")

    def _object(self) -> Generator[dict[str, Any], None, bool]:
        """Yield the events of the rest of an object. Returns True where it ended as JSON does."""
        found = False
        while (char := self._peek()) not in ("}", ""):
            key = self._value() if char == '"' else None
            if isinstance(key, str) and self._peek() == ":":
                self._at += 1
                if key == EVENTS and self._peek() == "[":
                    self._at += 1
                    found = True
                    yield from self._array()
                    continue
                if (value := self._value()) is not _BROKEN:
                    self.header[key] = value
                    continue
            is_cut = key is _BROKEN or self._peek() == ""
            if found:
                break
            if not self._skip_to_events():
                raise self._foreign(f"it ends before its {EVENTS}" if is_cut else "it is not JSON")
            self.broken.append("the header")
        if not found:
            raise self._foreign(f"it {'has no' if char else 'ends before its'} {EVENTS}")
        self._at += 1
        return char == "}"

    def _array(self) -> Generator[dict[str, Any], None, bool]:
        """Yield the events of the rest of an array. Returns True where it ended."""
        number = 0
        while (char := self._peek()) not in ("]", ""):
            number += 1
            value = self._value() if char == "{" else _BROKEN
            if value is not _BROKEN:
                yield value
            elif number == 1 and char != "{":
                raise self._foreign("its events are not objects")
            elif self._resume():
                self.broken.append(f"event {number}")
        self.is_truncated = self.is_truncated or char == ""
        self._at += 1
        return char == "]"

    def _resume(self) -> bool:
        """Move past broken text to the next event, or to the end of the array. False where the file ends first."""
        self._at += 1
        while True:
            for opening in _OPENING.finditer(self._text, self._at):
                if opening.group(1) or self._is_event(opening.start()):
                    self._at = opening.start()
                    return True
            self._at = max(self._at, len(self._text) - MAX_STRING_CHARACTERS)
            if not self._read_more():
                break
        closing = _CLOSING.search(self._text, self._at)
        self._at = closing.end() - 1 if closing is not None else len(self._text)
        return closing is not None

    def _is_event(self, at: int) -> bool:
        try:
            return "ph" in self._decode(self._text, at)[0]
        except (ValueError, RecursionError):
            return False

    def _skip_to_events(self) -> bool:
        """Move past a broken value of the header to the events. False where the file has none."""
        while (opening := _EVENTS_OPENING.search(self._text, self._at)) is None:
            self._at = max(self._at, len(self._text) - MAX_STRING_CHARACTERS)
            if not self._read_more():
                return False
        self._at = opening.start()
        return True

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
        """Decode the value at the current position; _BROKEN, and stay there, where it is not JSON or ends early."""
        self._peek()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._nulled(error):
                    continue
                if len(self._text) - error.pos > MAX_STRING_CHARACTERS or not self._read_more():
                    return _BROKEN
            except (ValueError, RecursionError):  # an endless number, or too deep
                return _BROKEN
            else:
                # A number at the end of the text may go on in the next chunk; the rest ends with a mark of its own.
                if end < len(self._text) or isinstance(value, (dict, list, str)) or not self._read_more():
                    self._at = end
                    return value
            if len(self._text) - self._at > MAX_VALUE_CHARACTERS:
                raise self._foreign("it is not JSON")

    def _nulled(self, error: json.JSONDecodeError) -> bool:
        """Put null in place of the word at which a value was expected: inf, -nan(ind), None."""
        word = _WORD.match(self._text, error.pos) if error.msg == "Expecting value" else None
        if word is None or word.end() == len(self._text):
            return False
        self._text = f"{self._text[self._at : error.pos]}null{self._text[word.end() :]}"
        self._at = 0
        return True

    def _read_more(self) -> bool:
        chunk = next(self._refill, None)
        if chunk is None:
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
    decode = getincrementaldecoder("utf-8-sig")(errors="replace").decode
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
            chunk = member.unused_data.lstrip(b"\0")  # some writers pad with zeros
            if chunk:
                member = zlib.decompressobj(wbits=_GZIP_WINDOW)
