"""One tree as something to give orders to: each is carried out by the tree's own xbench, in a process of its own.

The tree comes first on the path (and its `src`, where it has one), so that its packages, xbench itself among them where
it is one, go before whatever is installed; everything else is the environment that both sides share. What of our own
PYTHONPATH points into head's tree points into this one instead.
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

from pydantic import ValidationError

from xbench.errors import Interrupted, RunError
from xbench.records import SideName
from xbench.runtime.launch_processes import GUARD
from xbench.runtime.regress.protocol import VERSION, Answer, Order

ENDING_S = 15.0
ASK_S = 60.0
LOG_CHARACTERS = 20_000
NO_SUCH_COMMAND = 2


class Incomparable(RunError):
    """The tree's xbench cannot be given orders: it has no such command, or speaks another version of the protocol."""


@dataclass(frozen=True)
class Tree:
    """A side of a check. `root` of the tree, and the suite's folder in it; `head_root`: see the module."""

    name: SideName
    root: Path
    folder: Path
    head_root: Path
    title: str

    def ask(self) -> None:
        """Raise Incomparable, in one sentence, where this tree cannot be measured by orders of ours."""
        if not self.folder.is_dir():
            raise Incomparable(f"{self.title} has no folder {self.folder.name!r}, in which head's suite stands")
        code, out, log = run([*_COMMAND, "--protocol"], self.folder, self.environ(), ASK_S)
        try:
            spoken = int(json.loads(out)["protocol"]) if code == 0 else None
        except (ValueError, KeyError, TypeError):
            spoken = None
        if spoken is None:
            detail = log or None
            if code == NO_SUCH_COMMAND:
                raise Incomparable(f"{self.title} has no xbench regress: it is older than this gate", detail=detail)
            raise Incomparable(f"{self.title}: its xbench does not start: {_last(log)}", detail=detail)
        if spoken != VERSION:
            raise Incomparable(
                f"{self.title} takes orders of version {spoken}, and head gives them in version {VERSION}"
            )

    def carry_out(self, order: Order, longest_s: float) -> Answer:
        """Let this tree carry out an order. A process that dies or answers nonsense is an answer with an `error`.

        Raises Interrupted, after it has ended, when the user asks to stop.
        """
        with tempfile.TemporaryDirectory(prefix="xb-order-") as at:
            given, made = Path(at) / "order.json", Path(at) / "answer.json"
            given.write_text(order.model_dump_json())
            code, _, log = run([*_COMMAND, str(given), str(made)], self.folder, self.environ(), longest_s)
            try:
                return Answer.model_validate_json(made.read_text())
            except (OSError, ValidationError):
                how = f"took longer than {longest_s:.0f} s" if code is None else f"ended with exit status {code}"
                return Answer(xbench="unknown", error=f"a launch of {self.title} {how}: {_last(log)}")

    def environ(self, ours: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The environment of this tree's processes."""
        before = [part for part in ours.get("PYTHONPATH", "").split(os.pathsep) if part]
        moved = [str(self.root / Path(part).resolve().relative_to(self.head_root)) if self._in_head(part) else part
                 for part in before]  # fmt: skip
        own = [str(self.root), *([str(self.root / "src")] if (self.root / "src").is_dir() else [])]
        return {**ours, "PYTHONPATH": os.pathsep.join(dict.fromkeys([*own, *moved]))}

    def _in_head(self, part: str) -> bool:
        return Path(part).resolve().is_relative_to(self.head_root)


_COMMAND = (sys.executable, "-m", "xbench", "regress", "launch")


def run(
    command: Sequence[str], folder: Path, environ: Mapping[str, str], longest_s: float
) -> tuple[int | None, str, str]:
    """(exit status, stdout, tail of stderr) of a process that does not outlive us; None: it took too long.

    Raises Interrupted when the user asks to stop, after the process has cleaned up behind itself.
    """
    process = subprocess.Popen(
        [*GUARD, str(os.getpid()), *command],
        cwd=folder,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, log = process.communicate(timeout=longest_s)
        return process.returncode, out, log[-LOG_CHARACTERS:]
    except subprocess.TimeoutExpired:
        return None, "", _ended(process)[-LOG_CHARACTERS:]
    except KeyboardInterrupt:
        _ended(process)
        raise Interrupted("interrupted") from None


def _ended(process: subprocess.Popen[str]) -> str:
    """Ask the process to stop, which ends its ranks and links; kill its session where it does not. What it said."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        return process.communicate(timeout=ENDING_S)[1]
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[1]


def _last(log: str) -> str:
    """The last line that a process said."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"
