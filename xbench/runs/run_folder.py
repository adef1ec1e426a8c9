"""Folder of a run, and the save of its record however its measurement ended.

No two runs share a folder. The record is saved in it, or elsewhere if its disk is full.
"""

from __future__ import annotations

import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from xbench.errors import Interrupted, RunError, SpecError, XbenchError
from xbench.interrupts import DeferredSignals, interrupts_held
from xbench.output_files import check_folder, write_file
from xbench.record_files import RESULTS, reason
from xbench.records import AnyRecord, dump

R = TypeVar("R", bound=AnyRecord, covariant=True)

_TOKEN = secrets.token_hex(4)
"""Suffix of file names outside the run's own folder, so that no other process uses or guesses them."""

_told: set[str] = set()
"""Reasons that `keep` has given. A run that saves its record again and again gives each once."""

IGNORED = "*\n"
"""Content of a .gitignore that excludes its whole folder, itself included."""


def check_output(output: Path) -> None:
    """Raise SpecError if no run's folder can be made in the folder of the results."""
    check_folder(output, RESULTS, hint=f"try {RESULTS}=/tmp/xbench")


def new_run_folder(output: Path, name: str) -> Path:
    """Make a new folder in `output`, such as 20260131-142501-comparison-resnet50.

    Runs that begin in the same second get the suffixes -2, -3 and so on. A newly made `output` gets a .gitignore that
    excludes its runs. Raises SpecError if no folder can be made.
    """
    made = not output.exists()
    began = f"{time.strftime('%Y%m%d-%H%M%S')}-{name.replace('/', '_')}"
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
            raise SpecError(f"{RESULTS}: {str(folder)!r} cannot be made: {failed.strerror}") from None


class Kept(NamedTuple, Generic[R]):
    """A record, its path, and the error that ended its measurement early, if any."""

    record: R
    path: Path
    error: XbenchError | None


def ended_by(measure: Callable[[], None], held: DeferredSignals) -> XbenchError | None:
    """Call `measure`, which the signals that `held` holds can interrupt. Return the error that ended it early, or None.

    Afterwards signals are held again, so that the measurements are saved.
    """
    try:
        with held.let_through():
            measure()
    except XbenchError as error:
        return error
    except OSError as failed:  # no folder, file or process could be made
        return RunError(f"the launches could not go on: {reason(failed)}")
    except KeyboardInterrupt:
        return Interrupted("interrupted")
    return None


def measure_and_keep(
    measure: Callable[[], None], make: Callable[[XbenchError | None], R], path_of: Callable[[R], Path]
) -> Kept[R]:
    """Measure, and save what `make` makes of the measurements and of the error that ended them early, if any.

    Passes on an error of `make`, which raises if there is nothing to record.
    """
    with interrupts_held() as held:
        error = ended_by(measure, held)
        record = make(error)
        return Kept(record, keep(record, path_of(record)), error or held.interrupted())


def keep(record: AnyRecord, path: Path) -> Path:
    """Save the record at `path`, or elsewhere if the disk is full or a file of others is there. Says why on stderr.

    Raises RunError if no folder accepts it.
    """
    why: str | None = None
    name = f"xbench-{path.parent.name}-{path.stem}-{_TOKEN}.json"
    for place in (path, *(Path(root) / name for root in _spare_folders())):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_file(dump(record), str(place))
        except (OSError, SpecError) as error:
            why = why or (reason(error) if isinstance(error, OSError) else str(error))
            continue
        if why is not None and why not in _told:
            _told.add(why)
            print(f"the record is kept in {place}, because: {why}", file=sys.stderr)
        return place
    raise RunError(f"the record could not be written anywhere: {why}")


def _spare_folders() -> list[str]:
    return [tempfile.gettempdir(), "/dev/shm", str(Path.home())]
