"""Files of a run's folder, each written whole or not at all.

FOLDER/frame.json        the record's fields besides measurements; written before the first launch
FOLDER/launch0/…         program, journals and logs of a launch
FOLDER/record.json       the record, written last; `records.load` rebuilds it from the others if it is missing
FOLDER/.NAME.PID-x.part  a file that process PID is writing
"""

from __future__ import annotations

import glob
import json
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

FRAME = "frame.json"
RECORD = "record.json"
_BEGAN = re.compile(r"\d{8}-\d{6}(?=-)")


def write_whole(text: str, path: Path) -> Path:
    """Write a file atomically: it is whole or does not exist. Raises OSError.

    Partial files that a killed process left for this path are removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        pid = part.name.removeprefix(f".{path.name}.").partition("-")[0]
        if pid.isdecimal() and not _alive(int(pid)):
            part.unlink(missing_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.{os.getpid()}-", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


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


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # the process of another user, or not a process number
        return True
    return True
