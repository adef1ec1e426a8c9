"""Temporary folders and partial files whose names contain the id of the process that made them.

    with Scratch("xb-") as folder: ...         /tmp/xb-4711-k3x9_2ab
    handle, name = part_file(path)             .record.json.4711-k3x9_2ab.part

A killed process leaves them behind, and `remove_left` removes those, never a living process's. The maker of a folder
holds a lock on a file in it. The kernel releases the lock when the process ends. So neither a reused process id nor one
of another container is mistaken for the maker. Standard library alone.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from xbench.errors import SpecError

OWNER = ".owner"
"""The locked file in every scratch folder. A folder without it does not belong to xbench, whatever its name."""

MAX_SOCKET_BYTES = 107
"""Longest path of a Unix socket that the kernel takes [B]."""

_SHORT = ("/tmp", "/var/tmp", "/dev/shm")
_FOLDER = re.compile(r"xb(?:ench)?-(?:[a-z]+-)?\d+-\w{8}")
_PART = re.compile(r"\..+\.(\d+)-\w+\.part")


class Scratch(tempfile.TemporaryDirectory[str]):
    """A private temporary folder, removed at the end of its context. Raises OSError if there is no room for it."""

    def __init__(self, prefix: str, parent: str | None = None) -> None:
        super().__init__(prefix=f"{prefix}{os.getpid()}-", dir=parent, ignore_cleanup_errors=True)
        part = os.path.join(self.name, f"{OWNER}.part")
        self._lock = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(part, os.path.join(self.name, OWNER))  # no process sees it unlocked

    def cleanup(self) -> None:
        """Remove the folder; safe to call again."""
        super().cleanup()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def short_place(needed: int) -> str:
    """The temporary folder, or another if its path and `needed` bytes after it are too long for a Unix socket.

    Raises SpecError if none is short enough.
    """
    max_bytes = MAX_SOCKET_BYTES - needed
    default = tempfile.gettempdir()
    for folder in (default, *_SHORT):
        if len(os.fsencode(folder)) <= max_bytes and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise SpecError(
        f"the temporary folder {default!r} is too long a path for a Unix socket",
        hint=f"set TMPDIR to a folder of at most {max_bytes} letters that can be written to",
    )


def part_file(path: Path) -> tuple[int, str]:
    """A new file next to `path`, to be renamed to it once it is whole: (descriptor, name).

    Its mode is that of any new file of this user. First removes the files of killed processes in that folder. Raises
    OSError.
    """
    remove_left([path.parent])
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.{os.getpid()}-", suffix=".part")
    mask = os.umask(0)  # there is no other way to read it
    os.umask(mask)
    os.fchmod(handle, 0o666 & ~mask)
    return handle, name


def places() -> list[Path]:
    """Folders that may contain scratch folders, and records that found no room elsewhere."""
    folders = [tempfile.gettempdir(), *_SHORT, os.path.expanduser("~")]
    return [Path(folder) for folder in dict.fromkeys(folders)]


def remove_left(folders: Iterable[Path]) -> list[Path]:
    """Remove this user's scratch folders and partial files directly in these folders whose makers are gone."""
    removed = []
    for path in (path for folder in folders for path in _entries(folder)):
        with suppress(OSError):
            if _FOLDER.fullmatch(path.name) and _is_own(path, stat.S_ISDIR):
                _remove_unless_held(path)
                removed.append(path)
            elif (part := _PART.fullmatch(path.name)) and _is_own(path, stat.S_ISREG) and not _is_alive(int(part[1])):
                path.unlink()
                removed.append(path)
    return removed


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _is_own(path: Path, kind: Callable[[int], bool]) -> bool:
    """True if it is of this kind, not a link, and belongs to this user."""
    status = path.lstat()
    return kind(status.st_mode) and status.st_uid == os.geteuid()


def _remove_unless_held(folder: Path) -> None:
    """Remove a scratch folder that no process holds. Raises OSError, also for a foreign or a held folder."""
    lock = os.open(folder / OWNER, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(lock)


def _is_alive(pid: int) -> bool:
    """True if a process has this id and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"
