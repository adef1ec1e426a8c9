"""Rows of xbench without host tuning beside plain training scripts of the same rivals, in one alternating run.

    python benchmarks/plain_scripts.py [--runs 20] [--steps 15] [--rivals ddp,horovod,fsdp,zero1] [--output FILE]

The scripts are those of the tutorials of DDP, Horovod, FSDP2 and ZeroRedundancyOptimizer (`tutorial_scripts.py`), on
ResNet-18 and a synthetic batch. torchrun starts them, and horovodrun the one of Horovod, which is left out if it is not
built. The rows are those of one comparison under XBENCH_HOST_TUNING=off. Its first launch profiles and checks parity.
Each later launch times one rival, and the rival's script runs before and after the launch. So a machine whose speed
changes steadily is equally fast for both sides. In a run this happens once for each rival. The mean of the steps counts
on both sides. Ratios (row over script) are paired by run, with 95 % intervals (Student's, over runs, as over launches
in a comparison).

A launch times one rival because memory belongs to a process: after the buffers of `fsdp` have been freed in it, the
steps of `ddp` have fewer page faults there.

Both sides have the same model, batch, loss, optimizer, dtype, units of FSDP2, cores, threads and network interface:
two ranks, a core and a thread each. Both time whole steps after the same warm-up, without a barrier between them. Two
things differ, and are what is tested: xbench's own loop, which notes each step in a file, and the memory that its ranks
hold. Real times.

At the end it says which rows are within 2 % of their script, by their ratio and by their whole interval. FILE is
written after each run. If it is there, the same command goes on behind its last run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from tutorial_scripts import PX, SCRIPTS, WARMUP

from xbench import environment, horovod, host_tuning
from xbench.config import RunConfig
from xbench.fabrics import parse_fabric
from xbench.fabrics.fabric import available_cores
from xbench.profilers import budget
from xbench.rank.program import JobPlan, balanced_blocks, phases
from xbench.runs.event_collector import Collector
from xbench.runs.execute import execute
from xbench.runs.launch_policy import LaunchPolicy, LaunchSpec
from xbench.schedules import parse_modes
from xbench.spec import Effort, RunSpec
from xbench.stats.compare import BlockValue, paired_ratio
from xbench.stats.steps import steps_of_all
from xbench.workloads import parse_workload

FILE = Path(__file__).with_name("tutorial_scripts.py")
RIVALS = tuple(SCRIPTS)
RANKS = 2
WITHIN = 0.02

ALLOCATOR_PREFIX = "MALLOC_"
"""Prefix of the environment variables that the stored command names. A file holds runs of one setting only."""

Runs = list[dict[str, dict[str, float]]]


def script_step_s(rival: str, steps: int, cores: list[int]) -> float:
    """Mean step [s] of a script, started as its tutorial starts it."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "XBENCH_HOST_TUNING": "off"}
    with tempfile.TemporaryDirectory() as folder:
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        if rival == "horovod":
            horovodrun = str(Path(sys.executable).parent / "horovodrun")
            start = [horovodrun, "--gloo", "--network-interfaces", "lo", "-np", str(RANKS), sys.executable]
        words = ["--script", rival, "--steps", str(steps), "--folder", folder, "--cores", ",".join(map(str, cores))]
        subprocess.run([*start, str(FILE), *words], env=env, check=True, stdout=subprocess.DEVNULL)
        per_rank_s = [json.loads((Path(folder) / f"rank{number}.json").read_text()) for number in range(RANKS)]
    return statistics.fmean(steps_of_all(per_rank_s))


class BesideScripts(LaunchPolicy):
    """Policy of a comparison that times one rival in each launch, between two runs of its script.

    `runs` gets a row for each run of all rivals: step [s] of each rival's row and script. `keep()` is called after it.
    """

    def __init__(self, options: argparse.Namespace, cores: list[int], runs: Runs, keep: Callable[[], None]) -> None:
        self.options, self.cores, self.runs, self.keep = options, cores, runs, keep
        self.left = [rival for _ in range(len(runs), options.runs) for rival in options.rivals]
        self.timing, self.before_s = "", 0.0
        self.found: dict[str, dict[str, float]] = {}

    def check(self, run: RunSpec) -> tuple[str, ...]:
        """Store the run."""
        self.run = run
        return ()

    def next_launch(self, number: int, found: Collector, plans: Sequence[JobPlan]) -> LaunchSpec | None:
        """Return a launch that profiles and checks parity, then launches of one rival each."""
        if number == 0:
            return LaunchSpec(self.run, tuple(one for one in phases(self.run, 0) if one.kind != "timeline"))
        if self.timing:
            self._end(self.timing, number - 1, found)
        if not self.left:
            return None
        self.timing = self.left.pop(0)
        self.before_s = script_step_s(self.timing, self.options.steps, self.cores)
        return LaunchSpec(self.run, balanced_blocks([self.timing], self.options.rounds, number))

    def _end(self, rival: str, launch: int, found: Collector) -> None:
        """Run the script again, and note both sides."""
        timed = [sample.steps_s for sample in found.samples() if sample.launch == launch]
        after_s = script_step_s(rival, self.options.steps, self.cores)
        row_s = statistics.fmean(itertools.chain.from_iterable(timed))
        self.found[rival] = {"row": row_s, "script": (self.before_s + after_s) / 2}
        if len(self.found) == len(self.options.rivals):
            self.runs.append(self.found)
            self.found = {}
            self.keep()


def compare(options: argparse.Namespace, cores: list[int], runs: Runs, keep: Callable[[], None]) -> None:
    """Run the comparison without host tuning, with the scripts between its launches."""
    os.environ |= {host_tuning.VARIABLE: "off", budget.VARIABLE: "0.1"}  # no rival is planned from a profile
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig(
            workloads=(parse_workload(f"{FILE}:make"),),
            modes=parse_modes(",".join(options.rivals)),
            fabric=parse_fabric(f"local:ranks={RANKS}"),
            device="cpu",
            effort=Effort(rounds=options.rounds, steps=options.steps, warmup_steps=WARMUP, profile_steps=3),
            output=Path(folder),
        )
        result = execute(config, Console(stderr=True), BesideScripts(options, cores, runs, keep))
    if result.error is not None:
        raise result.error


def judged(runs: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Ratio of each rival's row to its script over all runs, and whether it is within 2 %."""
    table = {}
    for rival in runs[0]:
        script, row = (
            [BlockValue(number, 0, run[rival][side]) for number, run in enumerate(runs)] for side in ("script", "row")
        )
        ratio = paired_ratio(row, script, WITHIN)
        low, high = ratio.ci95
        table[rival] = {
            "row_over_script": ratio.model_dump(),
            "within_2_percent": abs(ratio.value - 1) <= WITHIN,
            "interval_within_2_percent": low >= 1 - WITHIN and high <= 1 + WITHIN,
        }
    return table


def kept_runs(path: Path | None, command: str) -> list[dict[str, dict[str, float]]]:
    """Runs that an interrupted benchmark has written to `path`. Exits if they are those of another command."""
    if path is None or not path.exists():
        return []
    kept = json.loads(path.read_text())
    if (kept["command"], kept["image_px"]) != (command, PX):
        sys.exit(f"{path} is of another benchmark ({kept['command']}, {kept['image_px']} px): name another --output")
    runs: list[dict[str, dict[str, float]]] = kept["runs"]
    return runs


def rivals_here(text: str) -> list[str]:
    """The rivals that are named and can run here. Raises ArgumentTypeError for an unknown one."""
    named = text.split(",")
    unknown = [rival for rival in named if rival not in RIVALS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(RIVALS)}")
    why = horovod.obstacle() if "horovod" in named else None
    if why is not None:
        print(f"horovod is left out: {why}", flush=True)
    return [rival for rival in named if rival != "horovod" or why is None]


def measure(options: argparse.Namespace) -> None:
    """Run what is left of the benchmark, write it after each run, and print the ratios."""
    cores = available_cores()[:RANKS]
    os.sched_setaffinity(0, cores)  # else xbench gives a rank all cores of its share, and a script one
    options.rivals = rivals_here(options.rivals)
    words = f"--runs {options.runs} --steps {options.steps} --rounds {options.rounds} --rivals"
    given = [f"{name}={os.environ[name]} " for name in sorted(os.environ) if name.startswith(ALLOCATOR_PREFIX)]
    command = f"{''.join(given)}python benchmarks/plain_scripts.py {words} {','.join(options.rivals)}"
    runs = kept_runs(options.output, command)

    def keep() -> None:
        told = ", ".join(f"{rival} {run['row'] / run['script']:.3f}" for rival, run in runs[-1].items())
        print(f"run {len(runs)} of {options.runs}: {told}", flush=True)
        if options.output is not None:
            result = {"command": command, "label": "real", "image_px": PX, "rivals": judged(runs), "runs": runs}
            result |= {"environment": environment.capture().model_dump()}
            options.output.write_text(json.dumps(result, indent=1) + "\n")

    if len(runs) < options.runs:
        compare(options, cores, runs, keep)
    for rival, row in judged(runs).items():
        ratio, whole = row["row_over_script"], row["interval_within_2_percent"]
        low, high = ratio["ci95"]
        print(f"{rival}: row over script {ratio['value']:.3f} [{low:.3f}, {high:.3f}], "
              f"within 2 %: {row['within_2_percent']}, the whole interval: {whole}")  # fmt: skip


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=2, help="blocks of each row in a run")
    parser.add_argument("--rivals", default=",".join(RIVALS))
    parser.add_argument("--output", type=Path)
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
