"""Reader of an agent's log (ours or torchrun's): how its ranks ended, and their last output.

The parent process did not start the ranks itself, so it cannot ask the kernel for their exit codes. The agent can, and
logs them.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

TAIL_BYTES = 64 * 1024

PEER_LOSS = re.compile(
    r"closed by peer|reset by peer|broken pipe|timed out|timeout|connection refused|no route to host|"
    r"network is unreachable|likely closed|remote process exited|failed to recv|connectfullmesh|connection was lost",
    re.IGNORECASE,
)
"""Messages of a rank after another rank or the link to it is gone: an effect, not a cause."""

_EXIT = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
_CLOSED = re.compile(r"Sending process (\d+) closing signal")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_NOISE = re.compile(r"^[WI]\d{4} |^[=*-]{5,}|^\[rank\d+\]:\s*$")


def tail(log: Path) -> str:
    """Return the last 64 KiB of a log; empty if there is none."""
    try:
        with open(log, "rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - TAIL_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def exit_codes(text: str) -> dict[int, int]:
    """Return exit code by process id, negative for a signal, of ranks that the agent saw fail."""
    return {int(pid): int(code) for code, _, pid in _EXIT.findall(text)}


def stopped_by_agent(text: str) -> set[int]:
    """Return process ids of ranks that the agent ended itself because a neighbour had failed."""
    return {int(pid) for pid in _CLOSED.findall(text)}


def last_words(text: str) -> str | None:
    """Return the line that best explains a failure: the exception of a rank or its agent, else the last line.

    The agent's own report, which follows the rank's output, does not count. None if there is no output.
    """
    said = text[: match.start()] if (match := _EXIT.search(text)) else text
    lines = [line.rstrip() for line in said.splitlines() if line.strip() and not _NOISE.search(line)]
    if match and lines and not said.endswith("\n"):
        lines.pop()  # the beginning of the line on which torchrun's report starts
    exception: str | None = None
    for number, line in enumerate(lines):
        if not line.startswith("Traceback (most recent call last)"):
            continue
        chained = number > 0 and lines[number - 1].startswith(_CHAINED)
        if exception is None or chained:
            exception = next((later for later in lines[number + 1 :] if not later.startswith((" ", "\t"))), exception)
    return exception or (lines[-1].strip() if lines else None)


def describe_exit(code: int | None) -> str:
    """Describe an exit code: 'was killed (SIGKILL)', 'ended with exit code 3', 'disappeared'."""
    if code is None:
        return "disappeared"
    if code < 0:
        try:
            return f"was killed ({signal.Signals(-code).name})"
        except ValueError:
            return f"was killed (signal {-code})"
    return f"ended with exit code {code}"
