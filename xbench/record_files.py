"""Files of a run's folder, each written whole or not at all.

FOLDER/frame.json        the record's fields besides measurements; written before the first launch
FOLDER/launch0/…         program, journals and logs of a launch
FOLDER/record.json       the record, written last; `records.load` rebuilds it from the others if it is missing
FOLDER/.NAME.PID-x.part  a file that process PID is writing

`read_regular` reads files that other programs wrote: regular files only, and at most a given size. Reading a FIFO could
wait forever. A device or a sparse file could fill the memory. For compressed files, the bound is on the unpacked size.

`now` and `command_line` are what every record says of its making.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import stat
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from xbench.scratch import part_file

FRAME = "frame.json"
RECORD = "record.json"
RESULTS = "XBENCH_RESULTS"
"""Environment variable that names the folder of the runs."""
MIB = 2**20
_HEAD_CHARACTERS = 300
_BEGAN = re.compile(r"\d{8}-\d{6}(?=-)")


def results_folder() -> Path:
    """Return the folder of the runs: that of XBENCH_RESULTS, else results/runs."""
    return Path(os.environ.get(RESULTS) or "results/runs")


def now() -> str:
    """Return the current time, UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def command_line() -> str:
    """Return the command that was typed."""
    return shlex.join(["xbench", *sys.argv[1:]]).encode(errors="replace").decode()


def write_whole(text: str, path: Path) -> Path:
    """Write a file atomically: it is whole, or as it was before. It keeps its permissions.

    Raises OSError that names the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = part_file(path)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        with suppress(FileNotFoundError):
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except OSError as error:  # on a full disk, the error lacks the file's name
        Path(temporary).unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def reason(error: OSError) -> str:
    """Return the file that an error of the system names, if any, and the reason, without a number."""
    told = error.strerror or str(error)
    return f"{os.fsdecode(error.filename)}: {told}" if isinstance(error.filename, (str, bytes, Path)) else told


def sync_folder(folder: Path) -> None:
    """Write a folder's entries to disk, so that its names outlast a crash of the machine. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def run_folders(output: Path) -> list[Path]:
    """Return folders in `output` that hold a run, newest first. Empty if `output` is missing or not readable."""
    found: list[tuple[str, int, Path]] = []
    try:
        for folder in output.iterdir():
            held = next((path for path in (folder / RECORD, folder / FRAME) if path.is_file()), None)
            if held is not None:
                changed_ns = held.stat().st_mtime_ns
                named = _BEGAN.match(folder.name)
                began = named[0] if named else time.strftime("%Y%m%d-%H%M%S", time.localtime(changed_ns / 1e9))
                found.append((began, changed_ns, folder))
    except OSError:
        return []
    return [folder for _, _, folder in sorted(found, reverse=True)]


def frame_kind(folder: Path) -> str | None:
    """Return the kind of run that a folder's `frame.json` names (`records.REBUILDERS`). None without such a file."""
    try:
        frame: Any = json.loads((folder / FRAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    kind = frame.get("kind") if isinstance(frame, dict) else None
    return kind if isinstance(kind, str) else None


class Readable(Protocol):
    """Source of bytes: a file, or a compressed stream."""

    def read(self, size: int, /) -> bytes:
        """Return at most that many bytes."""
        ...


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the bytes of a regular file of at most `most_bytes`. A link to one is followed.

    Raises OSError whose `strerror` is the reason: missing, not readable, not a regular file, too large.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO without a writer opens at once
    with os.fdopen(descriptor, "rb") as stream:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        return read_bounded(stream, most_bytes, str(path))


def read_bounded(stream: Readable, most_bytes: int, name: str) -> bytes:
    """Return all bytes of a stream of at most `most_bytes`. Raises OSError for a longer one."""
    chunks = []
    left = most_bytes + 1
    while left and (chunk := stream.read(min(left, MIB))):
        chunks.append(chunk)
        left -= len(chunk)
    if not left:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes // MIB} MiB", name)
    return b"".join(chunks)


def is_record(path: Path) -> bool:
    """True if the file begins as a record does."""
    try:
        if not path.is_file():
            return False
        with path.open(encoding="utf-8", errors="replace") as stream:
            return '"schema_version"' in stream.read(_HEAD_CHARACTERS)
    except OSError:
        return False
