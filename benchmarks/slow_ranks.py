"""Are slow ranks and links named, and is nothing named without them?

    python benchmarks/slow_ranks.py [--runs 20] [--slower-ms 10] [--kinds "backward,input,none,link,no link"]
        [--output results/slow-ranks.json]

Each run is `xbench profile benchmarks/planted.py:make --quick`, with ranks that leave out the parts of a profile that
no name rests on (`short_profile.py`). There are five kinds of runs: a slow backward pass on
rank 1 of two local ranks, a slow loader there, a slow link of host 1 of three shaped hosts, and the two local ranks and
the three hosts without a fault. Runs of all kinds alternate, so that a change of the machine meets them all.

A fault counts as named if the profile names its rank or link and no other, and the planted part of the step first. It
counts as named exactly if the profile names no other part either, and the layer from which on backward is slow.

A run without a planted fault has none only if its cores are equally fast. So both cores compute the same before and
after every run. All runs are counted, and those whose cores differed by at most APART once more by themselves.

The file is written after every run, and a second call with it continues where the first ended. Real compute, real
links.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from xbench import environment
from xbench.fabrics import links
from xbench.record_files import RESULTS
from xbench.records import Profile, Stragglers, load

HERE = Path(__file__).parent
WORKLOAD = f"{HERE.name}/planted.py:make"
LOCAL, SHAPED = "local:ranks=2", "shaped:hosts=3,rate=1gbit"
RATE, SLOW_RATE = "1000000000bit", "250000000bit"
KINDS = {
    "backward": (LOCAL, "backward", ["rank 1: backward from layers.2"]),
    "input": (LOCAL, "input", ["rank 1: input"]),
    "none": (LOCAL, "", []),
    "link": (SHAPED, "", ["link of host 1"]),
    "no link": (SHAPED, "", []),
}
"""Fabric of each kind of run, the fault of the workload, and what is to be named."""

APART = 0.05
"""Largest difference between two cores that are called equally fast: the smallest lag of a rank that is named."""

CHECK_S = 1.0
"""Time of one comparison of the cores [s]."""

START = "from slow_ranks import start; start()"
"""A run in a process of its own."""

SLOW_LINK = "XBENCH_SLOW_LINK"
"""Variable with the host whose link is to be slow."""


def start() -> None:
    """Run the command line, with short profiles, and with a slow link if the environment asks for one."""
    from xbench.__main__ import run
    from xbench.runs import execute

    execute.WORKER = "short_profile"
    if os.environ.get(SLOW_LINK):
        plant_slow_link(int(os.environ[SLOW_LINK]))
    run()


def plant_slow_link(host: int) -> None:
    """Let every fabric of this process have a slow link at one host. Its bursts stay as long as packets need."""
    raise_links = links.raise_links

    def raise_slow(run_id: str, hosts: int, rate_bps: float) -> None:
        raise_links(run_id, hosts, rate_bps)
        space = links.namespace(run_id, host)
        for where, device in ((space, links.INTERFACE), (links.namespace(run_id, "sw"), space)):
            shaping = links.shaping(device, rate_bps).replace("qdisc add", "qdisc replace").replace(RATE, SLOW_RATE)
            links.run(["tc", "-n", where, "-batch", "-"], f"{shaping}\n")

    links.raise_links = raise_slow


def cores_apart(pool: ProcessPoolExecutor) -> float:
    """Return how much longer the slower of the first two cores takes for the same computation, as a share."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    times_s = list(pool.map(_median_s, cores))
    return max(times_s) / min(times_s) - 1


def _median_s(core: int) -> float:
    """Return the median time of a multiplication of matrices on this core [s]."""
    os.sched_setaffinity(0, {core})
    import numpy as np

    matrix = np.random.default_rng(0).random((256, 256), dtype=np.float32)
    times_s: list[float] = []
    until_s = time.monotonic() + CHECK_S
    while (began_s := time.monotonic()) < until_s:
        for _ in range(8):
            matrix @ matrix
        times_s.append(time.monotonic() - began_s)
    return statistics.median(times_s)


def named(found: Stragglers) -> list[str]:
    """Return the places that were named, in a word each."""
    places = []
    for slow in found.ranks:
        where = "busy processor" if slow.waited_share is not None else " and ".join(slow.parts)
        layer = f" from {slow.layer}" if slow.layer is not None and slow.waited_share is None else ""
        places.append(f"rank {slow.rank}: {where}{layer}")
    return [*places, *(f"link of {' and '.join(slow.hosts)}" for slow in found.links)]


def profiled(kind: str, slower_ms: int) -> tuple[Profile, float]:
    """Profile once; return the record and the time that it took [s]."""
    fabric, plant, _ = KINDS[kind]
    plant = f"{plant}:{slower_ms}" if plant else ""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])}
    env |= {"XBENCH_PLANT": plant, SLOW_LINK: "1" if kind == "link" else ""}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "record.json"
        words = ["profile", WORKLOAD, "--quick", "--fabric", fabric]
        began_s = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", START, *words, "--json", str(place)],
            capture_output=True, text=True, env=env | {RESULTS: folder}, cwd=HERE.parent,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"a run ended with exit code {done.returncode}:\n{done.stderr[-3000:]}")
        record = load(place)
    assert isinstance(record, Profile)
    return record, time.monotonic() - began_s


def one_run(kind: str, options: argparse.Namespace, pool: ProcessPoolExecutor) -> dict[str, Any]:
    """Profile once, between two comparisons of the cores."""
    before = cores_apart(pool)
    record, took_s = profiled(kind, options.slower_ms)
    assert record.stragglers is not None
    assert record.step is not None
    return {
        "kind": kind,
        "named": named(record.stragglers),
        "found": record.stragglers.model_dump(mode="json"),
        "step_s": record.step.uninstrumented_step_s,
        "cores_apart": [round(before, 4), round(cores_apart(pool), 4)],
        "warnings": record.warnings,
        "took_s": round(took_s, 1),
        "created": record.created,
    }


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Count runs, and those in which what was planted was named, in its place and exactly, by kind."""
    named_by_kind = {kind: [run["named"] for run in runs if run["kind"] == kind] for kind in KINDS}
    return {
        kind: {
            "runs": len(named_by_kind[kind]),
            "in_place": sum(is_in_place(found, wanted) for found in named_by_kind[kind]),
            "exactly": sum(found == wanted for found in named_by_kind[kind]),
        }
        for kind, (_, _, wanted) in KINDS.items()
        if named_by_kind[kind]
    }


def is_in_place(found: Sequence[str], wanted: Sequence[str]) -> bool:
    """True if the wanted rank or link is the only one named, and its planted part stands first."""
    places = [one.partition(" from ")[0] for one in wanted]
    return len(found) == len(wanted) and all(one.startswith(place) for one, place in zip(found, places, strict=True))


def main() -> int:
    """Run what is left, count, write; exit 1 if a run of any kind did not name what was planted, or more."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="of each kind")
    parser.add_argument("--slower-ms", type=int, default=10, help="time that a planted fault adds to a step")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS))
    parser.add_argument("--output", type=Path, default=Path("results/slow-ranks.json"))
    options = parser.parse_args()
    runs: list[dict[str, Any]] = []
    if options.output.exists():
        runs = json.loads(options.output.read_text(encoding="utf-8"))["runs"]
    words = f"--runs {options.runs} --slower-ms {options.slower_ms}"
    command = f"python benchmarks/slow_ranks.py {words} --kinds {shlex.quote(','.join(options.kinds))}"
    order = [kind for _ in range(options.runs) for kind in options.kinds]
    with ProcessPoolExecutor(2, initializer=os.environ.update, initargs=({"OPENBLAS_NUM_THREADS": "1"},)) as pool:
        for kind in order[len(runs) :]:
            run = one_run(kind, options, pool)
            runs.append(run)
            result = {
                "label": "real",
                "made_by": command,
                "environment": environment.capture().model_dump(),
                "counts": summary(runs),
                "counts_on_equal_cores": summary([one for one in runs if max(one["cores_apart"]) <= APART]),
                "runs": runs,
            }
            options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            what = f"{run['kind']}: {', '.join(run['named']) or 'nothing'} ({run['took_s']:.0f} s)"
            apart = " and ".join(f"{share:.1%}" for share in run["cores_apart"])
            print(f"run {len(runs)} of {len(order)}, cores apart {apart}, {what}", flush=True)
    for kind, count in summary(runs).items():
        print(f"{kind}: {count['in_place']} of {count['runs']} in place, {count['exactly']} exactly")
    return 0 if all(count["in_place"] == count["runs"] for count in summary(runs).values()) else 1


if __name__ == "__main__":
    sys.exit(main())
