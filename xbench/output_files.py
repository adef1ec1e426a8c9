"""Files that the user names for an output: which may be written, and how. Every command writes through `write_file`.

A file that is there is replaced if it is empty or xbench wrote it, which the beginning of each of its formats says
(`is_own`). Any other file, and a file behind a symbolic link, is refused unless `--force` is given. Only a record
replaces a record, whatever is forced (`commands.options.check_targets`).

A regular file is written whole or not at all, and keeps its permissions. Devices, pipes and open descriptors, such as
/dev/stdout, are written as they are.
"""

from __future__ import annotations

import csv
import errno
import os
import re
import shlex
import stat
from contextlib import suppress
from pathlib import Path

from xbench.errors import RunError, SpecError
from xbench.record_files import write_whole
from xbench.scratch import Scratch, part_file

MARKDOWN_MARK = "<!-- xbench -->"
"""First line of every Markdown text, hidden where it is shown."""

_HEAD_BYTES = 64 * 1024
_OPENINGS = re.compile(
    r'\{\s*("kind":\s*"\w+",\s*)?"schema_version":\s*\d+,\s*("kind":\s*"\w+",\s*)?"created":\s*"'
    r'|<!doctype html>\s*<html lang="en">\s*<head>\s*<meta charset="utf-8">\s*<meta name="generator" content="xbench">'
    rf"|{MARKDOWN_MARK}|### xbench regress\n"
    r'|\{"displayTimeUnit": "ms",\s*"otherData": \{\s*"title": "xbench '
    r'|<\?xml [^>]*\?>\s*<testsuites name="xbench '
)
_LABELS = {"real", "emulated", "simulated"}
_SUBJECTS = {"workload", "policy"}
_DATED = {"created", "label"}
_IN_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)
"""Errors of a rename over a file that may be written itself: in a folder that may not, or mounted by itself."""

_DESCRIPTORS = re.compile(r"/proc/\d+(/task/\d+)?/fd")
_MAX_LINKS = 40


def is_own(head: str) -> bool:
    """True if the text of a file begins as one that xbench writes. Empty text counts, too."""
    return not head or _OPENINGS.match(head) is not None or _is_own_table(head)


def _is_own_table(head: str) -> bool:
    """True for the CSV of a record: every row of its tables says whether it is real, emulated or simulated."""
    lines = head.splitlines()
    if len(lines) < 2:
        return False
    try:
        names, first = csv.reader(lines[:2])
    except (csv.Error, ValueError):
        return False
    row = dict(zip(names, first, strict=False))
    return row.keys() >= _DATED or (row.get("label") in _LABELS and not _SUBJECTS.isdisjoint(row))


def check_file(target: str, option: str | None = None, *, force: bool = False) -> None:
    """Raise SpecError if the target cannot be written, or holds what xbench may not replace without `force`.

    A regular file is tried: a new file is made beside it, and removed.
    """
    path, told = Path(target), option or "output"
    parent = path.absolute().parent
    try:
        if os.path.isdir(path):
            raise SpecError(f"{told}: {target!r} is a folder", hint="name a FILE in it")
        if not stat.S_ISDIR(os.stat(parent).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not is_regular(path):
            _check_access(path)
            return
        place = Path(os.path.realpath(path))
        if not force:
            _check_own(path, place, told)
        _try(place)
    except (OSError, ValueError) as error:  # not allowed, read-only, no room, too long a name, a NUL in it
        if isinstance(error, FileNotFoundError) and not os.path.lexists(parent):
            make = f"mkdir -p {shlex.quote(str(path.parent))}"
            raise SpecError(f"{told}: the folder of {target!r} does not exist", hint=make) from None
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        hint = f"{option} FILE writes where you may" if option else None
        raise SpecError(f"{told}: {target!r} cannot be written: {reason}", hint=hint) from None


def check_folder(folder: Path, name: str, hint: str | None = None) -> None:
    """Raise SpecError if no new folder can be made in `folder`, whether that exists or not. It is tried.

    `name` stands for the folder in the message.
    """
    path = folder.absolute()
    try:
        there = next(one for one in (path, *path.parents) if _exists(one))
        if not os.path.isdir(there):
            raise SpecError(f"{name}: {str(there)!r} is not a folder")
        Scratch("xbench-", str(there)).cleanup()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SpecError(f"{name}: nothing can be written to {str(folder)!r}: {reason}", hint=hint) from None


def write_file(text: str, target: str, *, force: bool = False) -> None:
    """Write an output to a file. Raises SpecError as `check_file` does, RunError, and OSError that names the file."""
    check_file(target, force=force)
    path = Path(os.path.realpath(target)) if is_regular(Path(target)) else Path(target)
    if is_regular(path):
        try:
            write_whole(text, path)
            return
        except OSError as error:
            if error.errno not in _IN_PLACE or not os.path.isfile(path):
                raise
    try:
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)
    except BrokenPipeError:
        raise RunError(f"{target}: its reader has closed it") from None
    except OSError as error:  # on a full disk, the error lacks the file's name
        raise OSError(error.errno, error.strerror, target) from None


def is_regular(path: Path) -> bool:
    """True for a regular file, or if there is none yet. False for a device, a pipe, or a descriptor of a process."""
    link = os.path.abspath(path)
    for _ in range(_MAX_LINKS):
        if not os.path.islink(link):
            break
        folder = os.path.realpath(os.path.dirname(link))
        if _DESCRIPTORS.fullmatch(folder):
            return False
        link = os.path.join(folder, os.readlink(link))
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return True


def _check_own(path: Path, place: Path, told: str) -> None:
    """Raise SpecError for a link, and for a file of others. Raises OSError if it cannot be read."""
    if path.is_symlink():
        raise SpecError(f"{told}: {str(path)!r} is a link to {str(place)!r}", hint=f"name {place}, or add --force")
    if not place.exists():
        return
    with place.open("rb") as stream:
        head = stream.read(_HEAD_BYTES).decode("utf-8", errors="replace")
    if not is_own(head):
        raise SpecError(
            f"{told}: {str(path)!r} is a file that xbench did not write",
            hint="name another FILE, or replace it: --force",
        )


def _try(place: Path) -> None:
    """Raise OSError if the file cannot be written."""
    if place.exists():
        _check_access(place)
    try:
        handle, name = part_file(place)
    except OSError as error:
        if error.errno in _IN_PLACE and place.exists():
            return
        raise
    os.close(handle)
    with suppress(OSError):
        os.unlink(name)


def _exists(path: Path) -> bool:
    """True if there is something at the path. Raises OSError, also for a name that is too long."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _check_access(path: Path) -> None:
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
