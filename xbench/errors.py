"""Every error that a user can see, as one tree.

    XbenchError            exit 1
    ├── RunError           exit 1   ranks were started and something went wrong
    │   ├── RankError      exit 1   one rank died, raised or hung; the message names it
    │   ├── FabricError    exit 1   the network could not be set up, or broke
    │   └── KernelError    exit 1   a CUDA kernel could not be built, loaded or launched
    ├── UsageError         exit 2   a value that cannot work, found before anything is launched
    │   ├── SpecError      exit 2   a workload, mode, fabric or option
    │   ├── WorkloadError  exit 2   a model or factory that cannot be built or run
    │   ├── RecordError    exit 2   a result file that cannot be read
    │   └── AlikeError     exit 2   a refusal in a training loop that every rank raises at the same point
    └── Interrupted        exit 130 the user pressed Ctrl-C

`str(error)` is one sentence. `hint` names the next command or the nearest valid value; `detail` holds a traceback or a
log, shown under `--debug`. Only `cli.py` prints errors. In a traceback, the hint follows the message as a note. `lines`
are code to paste, printed below the hint as they are.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from xbench.former_words import former
from xbench.text import cut, visible

MAX_CHARACTERS = 160
"""Greatest length of foreign text in a hint [characters]."""

CLOSE = 0.65
"""Share of letters, in order, that a misspelling has in common with a name: 'dpp' with 'ddp', not 'fsdp' with 'spb'."""


class XbenchError(Exception):
    """The root of every error: `str(error)` is one sentence.

    `exit_code` is the exit code of the command line. `hint` names the next command or the nearest valid value, `detail`
    is a traceback or a log; both may be None. `lines` are lines of code to paste, with their indentation.
    """

    exit_code = 1

    def __init__(
        self, message: str, *, hint: str | None = None, detail: str | None = None, lines: Iterable[str] = ()
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.detail = detail
        self.lines = list(lines)
        if hint is not None:
            self.add_note("\n  ".join([f"hint: {hint}", *self.lines]))


class RunError(XbenchError):
    """Ranks were started and the run did not finish."""


class RankError(RunError):
    """One rank died, raised or hung."""


class FabricError(RunError):
    """A fabric could not be set up, or broke while in use."""


class KernelError(RunError):
    """A CUDA kernel could not be built, loaded or launched."""


class UsageError(XbenchError):
    """A wrong value, found before anything was launched."""

    exit_code = 2


class SpecError(UsageError):
    """A workload, mode, fabric or option that does not parse or does not exist."""


class WorkloadError(UsageError):
    """A workload that cannot be built, or cannot take its input."""


class RecordError(UsageError):
    """A result file that is broken, foreign, or of a newer schema."""


class AlikeError(UsageError):
    """A refusal of a schedule that every rank raises at the same point of the training loop.

    After it, ranks may exchange data to detach. Every other error may be of one rank alone, and the others do not wait.
    """


class Interrupted(XbenchError):
    """The user asked to stop."""

    exit_code = 130


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` may be a misspelling of, or None if nothing is close."""
    bare = {one.lstrip("-"): one for one in known}  # all options begin with dashes
    matches = difflib.get_close_matches(name.lstrip("-")[:MAX_CHARACTERS], list(bare), n=1, cutoff=CLOSE)
    return bare[matches[0]] if matches else None


def listed(names: Iterable[str], most: int = MAX_CHARACTERS) -> str:
    """The names for a hint: 'a, b, c and 12 more'. At most about `most` characters, however many names there are."""
    names = [visible(name) for name in names]
    shown: list[str] = []
    for name in names:
        if shown and sum(map(len, shown)) + 2 * len(shown) + len(name) > most:
            return f"{', '.join(shown)} and {len(names) - len(shown)} more"
        shown.append(cut(name, most))
    return ", ".join(shown)


def unknown(kind: str, name: str, known: Iterable[str], *, listing: str | None = None) -> SpecError:
    """The error for an unknown name; it says what took the place of a former one, or suggests the nearest known one."""
    if instead := former(kind, name):
        return SpecError(f"{kind} {name!r} is gone: {instead}")
    close = nearest(name, known)
    hint = f"did you mean {close!r}?" if close else None
    if listing:
        hint = f"{hint} ({listing} has them all)" if hint else f"{listing} has them all"
    return SpecError(f"unknown {kind} {name!r}", hint=hint)
