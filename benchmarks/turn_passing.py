"""What it costs to pass a turn, and to wait for one.

    python benchmarks/turn_passing.py            # writes results/turn-passing.json
    python benchmarks/turn_passing.py --out -    # JSON to stdout, nothing written

Two processes take turns on one device, as two training jobs do. A *pass* is the time from just before `release` in one
process to just after `acquire` in the other, read from the clock that all processes of a machine share. It is measured
twice: with turns of no length, and with turns in which the holder computes for a while, so that the core of the waiting
process has gone to sleep, which is how training finds it. The cost of waiting is the CPU time of a process that waits
for a long turn, and of the arbiter meanwhile.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shlex
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from xbench import environment
from xbench.turns.client import TurnClient, running_arbiter
from xbench.units import format_seconds

OUT = Path(__file__).parents[1] / "results" / "turn-passing.json"
PATTERN = (0, 1)


def play(path: str, job: int, turns: int, hold_s: float, released_ns: Any, answer: Connection) -> None:
    """Take `turns` turns and send the passes [s] that ended in this process. `released_ns` is shared by both jobs."""
    passes_s = []
    with TurnClient(path, job, 0) as client:
        client.begin("play", PATTERN)
        for _ in range(turns):
            client.acquire()
            now_ns = time.monotonic_ns()
            if released_ns.value:
                passes_s.append((now_ns - released_ns.value) / 1e9)
            while time.monotonic_ns() < now_ns + hold_s * 1e9:
                pass
            released_ns.value = time.monotonic_ns()
            client.release()
        client.end_block()
    answer.send(passes_s)


def wait_once(path: str, job: int, answer: Connection) -> None:
    """Wait for one long turn to end; send the CPU time [s] that this took, and the time waited [s]."""
    with TurnClient(path, job, 0) as client:
        client.begin("wait", PATTERN)
        before_s = time.process_time()
        client.acquire()
        answer.send((time.process_time() - before_s, client.waited_s))
        client.release()
        client.end_block()


def passes(turns: int, hold_s: float) -> dict[str, float]:
    """Median, 95th percentile and longest pass [s] of `turns` turns of `hold_s` each."""
    spawn = multiprocessing.get_context("spawn")
    released_ns = spawn.RawValue("q", 0)
    found_s: list[float] = []
    with tempfile.TemporaryDirectory(prefix="xb") as folder:
        path = Path(folder, "turns")
        with running_arbiter(path, jobs=2, devices=1):
            players = []
            for job in PATTERN:
                mine, theirs = spawn.Pipe()
                arguments = (str(path), job, turns // 2, hold_s, released_ns, theirs)
                players.append((spawn.Process(target=play, args=arguments, daemon=True), mine))
                players[-1][0].start()
                theirs.close()
            for process, answer in players:
                found_s += answer.recv()
                process.join()
    ordered = sorted(found_s)
    return {
        "passes": len(ordered),
        "hold_s": hold_s,
        "median_s": statistics.median(ordered),
        "p95_s": ordered[int(0.95 * len(ordered))],
        "max_s": ordered[-1],
    }


def long_wait(wait_s: float) -> dict[str, float]:
    """CPU time [s] that a waiting process and the arbiter use while another holds the device for `wait_s`."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="xb") as folder:
        path = Path(folder, "turns")
        with running_arbiter(path, jobs=2, devices=1) as arbiter, TurnClient(path, 0, 0) as holder:
            mine, theirs = spawn.Pipe()
            waiter = spawn.Process(target=wait_once, args=(str(path), 1, theirs), daemon=True)
            waiter.start()
            theirs.close()
            holder.begin("wait", PATTERN)
            with holder.turn():
                before_s = cpu_s(arbiter.pid)
                time.sleep(wait_s)
                arbiter_cpu_s = cpu_s(arbiter.pid) - before_s
            waiter_cpu_s, waited_s = mine.recv()
            waiter.join()
    return {"waited_s": waited_s, "waiter_cpu_s": waiter_cpu_s, "arbiter_cpu_s": arbiter_cpu_s}


def cpu_s(pid: int) -> float:
    """CPU time [s] of a process's main thread so far, to the nanosecond (proc(5), schedstat)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Measure what passing a turn and waiting for one cost.")
    parser.add_argument("--turns", type=int, default=5000, help="turns of both jobs together (default: 5000)")
    parser.add_argument("--hold-s", type=float, default=1e-3, help="length of a computing turn [s] (default: 0.001)")
    parser.add_argument("--wait-s", type=float, default=2.0, help="length of the long wait [s] (default: 2)")
    parser.add_argument("--out", default=str(OUT), help="JSON file, or - for stdout (default: results/)")
    options = parser.parse_args()
    if options.turns < 20:
        parser.error(f"--turns {options.turns} is too few for a 95th percentile: at least 20")

    found: dict[str, Any] = {
        "label": "real",
        "command": shlex.join(["python", "benchmarks/turn_passing.py", *sys.argv[1:]]),
        "environment": environment.capture().model_dump(mode="json"),
        "noise": environment.noise_warnings(),
    }
    for warning in found["noise"]:
        print(f"warning: {warning}", file=sys.stderr)
    found["passes"] = {"empty": passes(options.turns, 0.0), "computing": passes(options.turns, options.hold_s)}
    found["long_wait"] = long_wait(options.wait_s)

    for name, case in found["passes"].items():
        spread = f"median {format_seconds(case['median_s'])}, p95 {format_seconds(case['p95_s'])}"
        print(f"passing a turn, {name:9}: {spread}, longest {format_seconds(case['max_s'])}", file=sys.stderr)
    wait = found["long_wait"]
    print(
        f"waiting {format_seconds(wait['waited_s'])}: CPU time of the waiting process "
        f"{format_seconds(wait['waiter_cpu_s'])}, of the arbiter {format_seconds(wait['arbiter_cpu_s'])}",
        file=sys.stderr,
    )
    text = json.dumps(found, indent=1) + "\n"
    if options.out == "-":
        sys.stdout.write(text)
    else:
        Path(options.out).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
