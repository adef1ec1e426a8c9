"""What an agent's log (ours, or torchrun's) says about its ranks: how they ended, and their last words.

The parent is not the ranks' parent, so it cannot ask the kernel how a rank ended; the agent can, and writes it down.
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
"""What a rank says when another one, or the link to it, is gone: an effect, not a cause."""

_EXIT = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
_CLOSED = re.compile(r"Sending process (\d+) closing signal")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_NOISE = re.compile(r"^[WI]\d{4} |^[=*-]{5,}|^\[rank\d+\]:\s*$")


def tail(log: Path) -> str:
    """The last 64 KiB of a log; empty when there is none."""
    try:
        with open(log, "rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - TAIL_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def exit_codes(text: str) -> dict[int, int]:
    """Exit code by process id, negative for a signal, of ranks that the agent saw fail."""
    return {int(pid): int(code) for code, _, pid in _EXIT.findall(text)}


def stopped_by_agent(text: str) -> set[int]:
    """Process ids of ranks that the agent ended itself, because a neighbour had failed."""
    return {int(pid) for pid in _CLOSED.findall(text)}


def last_words(text: str) -> str | None:
    """The line that says best why a rank or its agent failed: the exception it died of, else its last line.

    The agent's own report, which follows what the rank said, does not count. None when nothing was said.
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
    """'was killed (SIGKILL)', 'ended with exit code 3', 'disappeared'."""
    if code is None:
        return "disappeared"
    if code < 0:
        try:
            return f"was killed ({signal.Signals(-code).name})"
        except ValueError:
            return f"was killed (signal {-code})"
    return f"ended with exit code {code}"
