"""Folder of a run. No two runs share one. The record is saved in it, or elsewhere if its disk is full."""

from __future__ import annotations

import secrets
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from xbench.errors import RunError, SpecError
from xbench.records import AnyRecord, save

_TOKEN = secrets.token_hex(4)
"""Suffix of file names outside the run's own folder, so that no other process uses or guesses them."""

IGNORED = "*\n"
"""Content of a .gitignore that excludes its whole folder, itself included."""


def new_run_folder(output: Path, name: str) -> Path:
    """Make a new folder in `output`, such as 20260131-142501-comparison-resnet50.

    Runs that begin in the same second get the suffixes -2, -3 and so on. A newly made `output` gets a .gitignore that
    excludes its runs. Raises SpecError if no folder can be made.
    """
    made = not output.exists()
    began = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    folder, number = output / began, 1
    while True:
        try:
            folder.mkdir(parents=True)
            if made:
                with suppress(OSError):
                    (output / ".gitignore").write_text(IGNORED, encoding="utf-8")
            return folder
        except FileExistsError:
            number += 1
            folder = output / f"{began}-{number}"
        except OSError as failed:
            raise SpecError(f"--output: {str(folder)!r} cannot be made: {failed.strerror}") from None


def keep(record: AnyRecord, path: Path) -> Path:
    """Save the record at `path`, or elsewhere if the disk is full.

    Raises RunError if no folder accepts it.
    """
    failed: OSError | None = None
    name = f"xbench-{path.parent.name}-{path.stem}-{_TOKEN}.json"
    for place in (path, *(Path(root) / name for root in _spare_folders())):
        try:
            return save(record, place)
        except OSError as error:
            failed = failed or error
    raise RunError(f"the record could not be written anywhere: {failed}")


def _spare_folders() -> list[str]:
    return [tempfile.gettempdir(), "/dev/shm", str(Path.home())]
