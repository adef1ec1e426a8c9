"""Agent: starts the ranks of one job on one host, and ends all of them when one fails.

    agent.py HOSTS RANKS HOST ADDRESS PORT COMMAND…

It is run by path and uses the standard library alone. It does the work of torchrun's agent and writes the same log
lines (`launch.agent_log` reads both). It does not import torch, because that import can take longer than the steps of a
launch. Agents have no rendezvous. Ranks meet at ADDRESS:PORT, where rank 0 keeps the store. Each rank gets a guard of
its own, as under torchrun.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

POLL_S = 0.02
ENDING_S = 3.0
GUARD = (sys.executable, "-I", "-S", str(Path(__file__).parents[1] / "launch_guard.py"), "any")


def main(argv: list[str]) -> int:
    """Start the ranks, wait for them and end them. Return 0 if every rank ended well."""
    hosts, ranks, host, address, port = int(argv[0]), int(argv[1]), int(argv[2]), argv[3], argv[4]
    signal.signal(signal.SIGTERM, _stop)
    started: list[subprocess.Popen[bytes]] = []
    try:
        for local_rank in range(ranks):
            env = os.environ | rank_variables(hosts, ranks, host, local_rank, address, port)
            started.append(subprocess.Popen([*GUARD, *argv[5:]], env=env, start_new_session=True, pass_fds=held()))
        codes: list[int | None] = [None]
        while None in codes and not any(codes):
            time.sleep(POLL_S)
            codes = [rank.poll() for rank in started]
        failed = [(place, rank) for place, rank in enumerate(started) if codes[place]]
        for place, rank in failed:
            print(f"failed (exitcode: {rank.returncode}) local_rank: {place} (pid: {rank.pid})", flush=True)
        return 1 if failed else 0
    finally:
        end([rank for rank in started if rank.poll() is None])


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


def held() -> list[int]:
    """Return the file descriptors in XBENCH_HELD, which ranks keep open while they live (a lock)."""
    return [int(one) for one in os.environ.get("XBENCH_HELD", "").split()]


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


def _stop(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
