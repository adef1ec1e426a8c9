"""Agent: starts the ranks of one job on one host, and ends all of them when one fails. And the reader of its log.

    agent.py HOSTS RANKS HOST ADDRESS PORT COMMAND…

It is run by path and uses the standard library alone. It does the work of torchrun's agent and writes the same log
lines. It does not import torch, because that import can take longer than the steps of a launch. Agents have no
rendezvous. Ranks meet at ADDRESS:PORT, where rank 0 keeps the store. Each rank gets a guard of its own, as under
torchrun.

The parent process did not start the ranks itself, so it cannot ask the kernel for their exit codes. The agent can, and
logs them. The reader tells how the ranks ended, and their last output.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

ENDING_S = 3.0
GUARD = (sys.executable, "-I", "-S", str(Path(__file__).parents[1] / "launch_guard.py"))
AGENT = (sys.executable, "-I", "-S", __file__)
"""The words before HOSTS."""

TAIL_BYTES = 64 * 1024

_PEER_LOSS = re.compile(
    r"closed by peer|reset by peer|broken pipe|timed out|timeout|connection refused|no route to host|"
    r"network is unreachable|likely closed|remote process exited|failed to recv|connectfullmesh|connection was lost",
    re.IGNORECASE,
)

EXIT = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
"""Of a rank that failed, in the words of torchrun and of this agent: exit code, local rank and process id."""

_CLOSED = re.compile(r"Sending process (\d+) closing signal")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_NOISE = re.compile(r"^[WI]\d{4} |^[=*-]{5,}|^\[rank\d+\]:\s*$")


def main(argv: list[str]) -> int:
    """Start the ranks, wait for them and end them. Return 0 if every rank ended well."""
    hosts, ranks, host, address, port = int(argv[0]), int(argv[1]), int(argv[2]), argv[3], argv[4]
    signal.signal(signal.SIGTERM, _stop)
    held = [int(number) for number in os.environ.get("XBENCH_HELD", "").split()]  # a lock, kept open while ranks live
    started: list[subprocess.Popen[bytes]] = []
    command = [*GUARD, str(os.getpid()), *argv[5:]]
    try:
        for local_rank in range(ranks):
            env = os.environ | rank_variables(hosts, ranks, host, local_rank, address, port)
            started.append(subprocess.Popen(command, env=env, start_new_session=True, pass_fds=held))
        codes: list[int | None] = [None]
        while None in codes and not any(codes):
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)  # an agent that polled would take time from its ranks
            codes = [rank.poll() for rank in started]
        failed = [(place, rank) for place, rank in enumerate(started) if codes[place]]
        for place, rank in failed:
            print(f"failed (exitcode: {rank.returncode}) local_rank: {place} (pid: {rank.pid})", flush=True)
        return 1 if failed else 0
    finally:
        end([rank for rank in started if rank.poll() is None])
        # Kill what they left in their process groups, such as the workers of a data loader. A kill takes effect later.
        deadline = time.monotonic() + ENDING_S
        for rank in started:
            # While one member lives, the group's id is not reused. A group without members does not exist.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.pid, signal.SIGKILL)
                while _lives(rank.pid) and time.monotonic() < deadline:
                    time.sleep(0.005)


def rank_variables(hosts: int, ranks: int, host: int, local_rank: int, address: str, port: str) -> dict[str, str]:
    """Return the environment variables that torch.distributed and the rank read, with torchrun's values."""
    found = {
        "RANK": str(host * ranks + local_rank),
        "LOCAL_RANK": str(local_rank),
        "GROUP_RANK": str(host),
        "WORLD_SIZE": str(hosts * ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }
    return found if ranks == 1 or "OMP_NUM_THREADS" in os.environ else {**found, "OMP_NUM_THREADS": "1"}


def end(ranks: list[subprocess.Popen[bytes]]) -> None:
    """Send SIGTERM to the ranks, and SIGKILL after 3 s."""
    for rank in ranks:
        print(f"Sending process {rank.pid} closing signal SIGTERM", flush=True)
        rank.terminate()
    deadline = time.monotonic() + ENDING_S
    for rank in ranks:
        try:
            rank.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


def _lives(group: int) -> bool:
    """True if a process group has a member that is no zombie."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, of_group = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(of_group) == group and state not in "ZX":
                return True
    return False


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
    return {int(pid): int(code) for code, _, pid in EXIT.findall(text)}


def stopped_by_agent(text: str) -> set[int]:
    """Return process ids of ranks that the agent ended itself because a neighbour had failed."""
    return {int(pid) for pid in _CLOSED.findall(text)}


def last_words(text: str) -> str | None:
    """Return the line that best explains a failure: the exception of a rank or its agent, else the last line.

    The agent's own report, which follows the rank's output, does not count. None if there is no output.
    """
    said = text[: match.start()] if (match := EXIT.search(text)) else text
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


def lost_peers(message: str | None) -> bool:
    """True for a rank's message after another rank or the link to it is gone: an effect, not a cause."""
    return message is not None and _PEER_LOSS.search(message) is not None


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


def _stop(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
