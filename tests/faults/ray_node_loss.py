"""Lose a node of a Ray cluster while `xbench cluster run` trains on it, many times over.

    python -m tests.faults.ray_node_loss --runs 20 --seed 0 --output results/ray-node-loss.json

A run has two raylets with one CPU each on this machine, and two real jobs: `gang`, with a worker on either node, and
`small`. At a drawn step of the gang the second raylet is killed (SIGKILL, its workers with it); in some runs another
node joins later. A run holds when the command ends with 0, every job has done every step, no loss of a node cost a job
more than one checkpoint interval, nothing was given up and no process is left.

Ray asks the raylets every second here, and takes one for dead after three failures (by default every 3 s and after
five). Runs that the output holds already, with the same seed, are not done again: a call that was cut off goes on, and
`--at-most` cuts it off on purpose.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from xbench import __version__
from xbench.cluster.live.attempt import losses
from xbench.cluster.live.ledger import JOBS, JobEnded, Resized, read
from xbench.records import load

INTERVAL = 20
STEPS = {"gang": 200, "small": 80}
LIMIT_S = 150.0
STORE = 80 * 2**20
HEALTH = {"health_check_period_ms": 1000, "health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
POLICIES = ("doubling", "equal-share", "fifo", "las", "srtf")
RIGID = ("fifo", "las", "srtf")
"""Give the gang two workers or none: with one node left it waits until another joins."""

JOBS_TOML = """
[[job]]
name = "gang"
workload = "synthetic:layers=20,bytes=64k"
steps = {gang}
batch_size = 8
gpus = 2
least = 1
checkpoint_steps = {interval}
speeds = {{ 1 = 60.0, 2 = 70.0 }}

[[job]]
name = "small"
workload = "synthetic:layers=20,bytes=64k"
steps = {small}
batch_size = 8
arrival_s = {arrival_s}
gpus = 1
checkpoint_steps = {interval}
speeds = {{ 1 = 60.0, 2 = 70.0 }}
"""


def draw(seed: int, number: int) -> dict[str, Any]:
    """Draw the events of a run, the same for the same seed and number."""
    source = random.Random(f"{seed}/{number}")
    policy = source.choice(POLICIES)
    return {
        "run": number,
        "policy": policy,
        "loss_at_step": source.randrange(INTERVAL, STEPS["gang"] - 2 * INTERVAL),
        "small_arrives_s": round(source.uniform(0.0, 8.0), 1),
        "joins_after_s": round(source.uniform(6.0, 12.0), 1) if policy in RIGID or source.random() < 0.5 else None,
    }


def one_run(drawn: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Start a cluster, take a node away while jobs train, and see what became of them."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "_system_config": dict(HEALTH)})
    try:
        lost = cluster.add_node(**node)
        text = JOBS_TOML.format(**STEPS, interval=INTERVAL, arrival_s=drawn["small_arrives_s"])
        (folder / "jobs.toml").write_text(text, encoding="utf-8")
        words = ["cluster", "run", str(folder / "jobs.toml"), "--engine", "ray", "--address", str(cluster.address)]
        words += [
            "--policy",
            drawn["policy"],
            "--restart-cost",
            "0s",
            "--folder",
            str(folder / "run"),
            "--retries",
            "1",
        ]
        with open(folder / "said", "wb") as said:
            command = subprocess.Popen(
                [sys.executable, "-m", "xbench", *words], stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )
        try:
            reached = _wait_for_step(folder, drawn["loss_at_step"], command)
            for process in psutil.Process(lost.all_processes["raylet"][0].process.pid).children(recursive=True):
                process.kill()
            lost.all_processes["raylet"][0].process.send_signal(signal.SIGKILL)
            if drawn["joins_after_s"] is not None:
                time.sleep(drawn["joins_after_s"])
                cluster.add_node(**node)
            try:
                code: int | None = command.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                code = None
        finally:
            command.kill()
            command.wait()
    finally:
        cluster.shutdown()
    return drawn | {"killed_at_step": reached} | _judged(folder, code)


def _wait_for_step(folder: Path, step: int, command: subprocess.Popen[bytes]) -> int:
    """The step of the gang that is reached, once that is the one asked for."""
    deadline_s = time.monotonic() + LIMIT_S
    while (done := max(losses(folder / "run" / JOBS / "gang"), default=0)) < step:
        if command.poll() is not None or time.monotonic() > deadline_s:
            break
        time.sleep(0.05)
    return done


def _judged(folder: Path, code: int | None) -> dict[str, Any]:
    """Outcome of a run, and `held`: True if that is what has to be."""
    said = (folder / "said").read_text(encoding="utf-8", errors="replace").splitlines()
    if not (folder / "run").exists():
        raise SystemExit("\n".join(["the run did not begin:", *said]))
    events, _ = read(folder / "run")
    endings = [event for event in events if isinstance(event, JobEnded)]
    lost = [event for event in endings if event.how in ("lost", "failed")]
    steps_lost = {
        name: max((one.steps - one.kept_steps for one in lost if one.job == name), default=0.0) for name in STEPS
    }
    record = load(folder / "run")
    whole = {name: list(losses(folder / "run" / JOBS / name)) == list(range(1, STEPS[name] + 1)) for name in STEPS}
    found: dict[str, Any] = {
        "exit_code": code,
        "status": {job.name: job.status for job in record.jobs},
        "every_step_done": whole,
        "steps_lost_at_once": steps_lost,
        "checkpoint_steps": INTERVAL,
        "node_losses": sum(event.how == "lost" for event in endings),
        "crashes": sum(job.crashes for job in record.jobs),
        "slots_seen": [event.slots for event in events if isinstance(event, Resized)],
        "processes_left": len(_left(folder)),
    }
    ended = code == 0 and all(status == "finished" for status in found["status"].values()) and all(whole.values())
    found["ended"] = ended
    found["held"] = ended and max(steps_lost.values()) <= INTERVAL and not found["processes_left"]
    if not found["held"]:
        found["said"] = said[-15:]
    return found


def _left(folder: Path) -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(str(folder) in word for word in words):
            found.append(process.pid)
    return found


def summary(runs: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    """All runs so far, the answer first."""
    return {
        "label": "real",
        "held": f"{sum(run['held'] for run in runs)} of {len(runs)}",
        "ended": f"{sum(run['ended'] for run in runs)} of {len(runs)}",
        "most_steps_lost": {name: max(run["steps_lost_at_once"][name] for run in runs) for name in STEPS},
        "checkpoint_steps": INTERVAL,
        "seed": seed,
        "versions": {"xbench": __version__}
        | {name: metadata.version(name) for name in ("ray", "torch")}
        | {"python": sys.version.split()[0]},
        "health_checks": HEALTH,
        "runs": runs,
    }


def main() -> int:
    """The command; exit code 1 where a run did not hold."""
    parser = argparse.ArgumentParser(description="Lose a node of a Ray cluster, many times over.")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--at-most", type=int, default=None, metavar="N", help="new runs in this call")
    given = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    before = json.loads(given.output.read_text(encoding="utf-8")) if given.output.exists() else {}
    runs = before["runs"] if before.get("seed") == given.seed else []
    done = {run["run"] for run in runs}
    for number in [number for number in range(given.runs) if number not in done][: given.at_most]:
        with tempfile.TemporaryDirectory(prefix="xbench-ray-") as name:
            runs.append(one_run(draw(given.seed, number), Path(name)))
        runs.sort(key=lambda run: run["run"])
        given.output.write_text(json.dumps(summary(runs, given.seed), indent=1) + "\n", encoding="utf-8")
        last = next(run for run in runs if run["run"] == number)
        print(f"run {number}: {'held' if last['held'] else 'DID NOT HOLD'}  {json.dumps(last)}", flush=True)
    return 0 if all(run["held"] for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
