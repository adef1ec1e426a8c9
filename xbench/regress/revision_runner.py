"""Runner of one revision: each job is carried out by the tree's own xbench, in a process of its own.

The tree (and its `src`, if any) comes first on the path. So its packages, xbench included if it is one of them, precede
installed ones. The rest of the environment is shared by both sides. Entries of our PYTHONPATH that point into head's
tree are changed to point into this one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from pydantic import ValidationError

from xbench.errors import Interrupted, RunError
from xbench.launch_guard import GUARD
from xbench.limits import last_line
from xbench.records import SideName
from xbench.regress.protocol import VERSION, JobRequest, JobResult
from xbench.scratch import Scratch

ENDING_S = 15.0
ASK_S = 60.0
LOG_CHARACTERS = 20_000
NO_SUCH_COMMAND = 2


class Incomparable(RunError):
    """The tree's xbench takes no jobs of ours: it lacks the command, or uses another version of the protocol."""


@dataclass(frozen=True)
class Checkout:
    """One side of a check. `root` is the tree's, `folder` the suite's in it, `head_root` that of head's tree."""

    name: SideName
    root: Path
    folder: Path
    head_root: Path
    title: str

    def ask(self) -> None:
        """Raise Incomparable, with one sentence, if this tree cannot carry out our jobs."""
        if not self.folder.is_dir():
            raise Incomparable(f"{self.title} has no folder {self.folder.name!r}, in which head's suite stands")
        code, out, log = Running([*_COMMAND, "--protocol"], self.folder, self.environ()).wait(ASK_S)
        try:
            spoken = int(json.loads(out)["protocol"]) if code == 0 else None
        except (ValueError, KeyError, TypeError):
            spoken = None
        if spoken is None:
            detail = log or None
            if code == NO_SUCH_COMMAND:
                raise Incomparable(f"{self.title} has no xbench regress: it is older than this gate", detail=detail)
            raise Incomparable(f"{self.title}: its xbench does not start: {last_line(log) or SILENT}", detail=detail)
        if spoken != VERSION:
            raise Incomparable(
                f"{self.title} takes orders of version {spoken}, and head gives them in version {VERSION}"
            )

    def begin(self, order: JobRequest) -> RunningJob:
        """Start a job in this tree, and return without waiting."""
        return RunningJob(self, order)

    def carry_out(self, order: JobRequest, longest_s: float) -> JobResult:
        """Carry out a job in this tree. A process that dies or gives an invalid result gives a result with an `error`.

        Raises Interrupted, after the process has ended, if the user asks to stop.
        """
        with self.begin(order) as underway:
            return underway.answer(longest_s)

    def environ(self, ours: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the environment of this tree's processes."""
        before = [part for part in ours.get("PYTHONPATH", "").split(os.pathsep) if part]
        moved = [str(self.root / Path(part).resolve().relative_to(self.head_root)) if self._in_head(part) else part
                 for part in before]  # fmt: skip
        own = [str(self.root), *([str(self.root / "src")] if (self.root / "src").is_dir() else [])]
        return {**ours, "PYTHONPATH": os.pathsep.join(dict.fromkeys([*own, *moved]))}

    def _in_head(self, part: str) -> bool:
        return Path(part).resolve().is_relative_to(self.head_root)


SILENT = "it said nothing"
_COMMAND = (sys.executable, "-m", "xbench", "regress", "launch")


class RunningJob:
    """A job that a tree's process is carrying out. As a context manager it ends the process at exit."""

    def __init__(self, tree: Checkout, order: JobRequest) -> None:
        self._title = tree.title
        self._at = Scratch("xb-order-")
        given, self._made = (Path(self._at.name) / name for name in ("order.json", "answer.json"))
        given.write_text(order.model_dump_json())
        self._running = Running([*_COMMAND, str(given), str(self._made)], tree.folder, tree.environ())

    @property
    def alive(self) -> bool:
        """True if the process still runs."""
        return self._running.alive

    def answer(self, longest_s: float) -> JobResult:
        """Wait for the result, for at most `longest_s` [s]. Raises Interrupted if the user asks to stop."""
        code, _, log = self._running.wait(longest_s)
        try:
            return JobResult.model_validate_json(self._made.read_text())
        except (OSError, ValidationError):
            how = f"took longer than {longest_s:.0f} s" if code is None else f"ended with exit status {code}"
            return JobResult(xbench="unknown", error=f"a launch of {self._title} {how}: {last_line(log) or SILENT}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.end()
        self._at.cleanup()


class Running:
    """A process that does not outlive us, and its output."""

    def __init__(self, command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> None:
        # Files instead of pipes: they are not read while it runs, and a full pipe would block it.
        self._out, self._log = (tempfile.TemporaryFile("w+", errors="replace") for _ in range(2))
        self._process = subprocess.Popen(
            [*GUARD, str(os.getpid()), *command],
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._log,
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        """True if the process still runs."""
        return self._process.poll() is None

    def wait(self, longest_s: float) -> tuple[int | None, str, str]:
        """Return (exit status, stdout, tail of stderr) after the process has ended. Status None: it took too long.

        Raises Interrupted if the user asks to stop, after the process has cleaned up.
        """
        code: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(timeout=longest_s)
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None
        finally:
            self.end()
        with self._out, self._log:
            out, log = (_said(stream) for stream in (self._out, self._log))
        return code, out, log[-LOG_CHARACTERS:]

    def end(self) -> None:
        """Ask the process to stop, which ends its ranks and links. Kill its session if it does not."""
        if not self.alive:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=ENDING_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _said(stream: IO[str]) -> str:
    stream.seek(0)
    return stream.read()
