"""How far off predictions are: cells drawn by a seed, each predicted and then measured by `xbench compare`.

    python benchmarks/study measure results/matrix.json --cells 24 --seed 37 --hosts 2,2,2,2,3,4
    python benchmarks/study show results/matrix.json

`measure` writes the cells and their order before it starts, and saves after every cell. The same command goes on where
it stopped, on the same commit only, and measures again what failed. A measured cell is never measured again. With
`--held-out` so many hosts are measured too, and predicted from the smallest number in `--hosts`. `show` prints the
tables of such a file; held-out cells of a drawing count only once every cell is measured.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from cells import cell_of
from drawing import Cell, draw, matrix
from figures import auto_over_ddp, groups, order, percentile95, regret, table

from xbench.environment import capture
from xbench.errors import XbenchError
from xbench.records import load

RECORDS = Path("results/runs/study")


def main() -> int:
    """Measure or show. Returns 1 if a cell is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "show"])
    parser.add_argument("file", type=Path, help="the study's JSON")
    parser.add_argument("--workloads", default="mobilenet_v2,resnet18,densenet121,resnet50")
    parser.add_argument("--links", default="shaped", choices=["shaped", "emulated"])
    parser.add_argument("--hosts", default="2", help="2,2,4: a number that is named twice has twice the weight")
    parser.add_argument("--rates", default="10gbit,1gbit,100mbit")
    parser.add_argument("--modes", default="compute,ddp,single,wfbp,mgwfbp,optimal,auto")
    parser.add_argument("--cells", type=int, help="draw so many; a quarter is held out. Default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held-out", help="numbers of hosts that are predicted from fewer")
    parser.add_argument("--compare", default="--launches 1 --rounds 4", help="more options of xbench compare")
    options = parser.parse_args()
    if options.what == "measure":
        measure(options)
    return show(json.loads(options.file.read_text(encoding="utf-8")))


def asked(options: argparse.Namespace) -> list[Cell]:
    """Return the cells in the order of measurement, those of held-out sizes last."""
    workloads, rates = options.workloads.split(","), options.rates.split(",")
    hosts = [int(count) for count in options.hosts.split(",")]
    if options.cells is not None:
        return draw(workloads, hosts, rates, options.cells, options.seed)
    more = [int(count) for count in (options.held_out or "").split(",") if count]
    return matrix(workloads, [*dict.fromkeys(hosts), *more], rates)


def measure(options: argparse.Namespace) -> None:
    """Measure every cell that the file does not have yet, and save after each."""
    places, environment = asked(options), capture().model_dump(mode="json")
    study: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/study", *sys.argv[1:]]),
        "environment": environment,
        "places": [list(place) for place in places],
        "cells": [None] * len(places),
    }
    if options.file.exists():
        study = {**study, **json.loads(options.file.read_text(encoding="utf-8"))}
        if study["places"] != [list(place) for place in places]:
            sys.exit(f"{options.file} has other cells than these options: write another file")
        if study["environment"]["commit"] != environment["commit"]:
            sys.exit(f"{options.file} was measured on commit {study['environment']['commit']}: check that out")
    records = [RECORDS / f"{options.file.stem}-{number}.json" for number in range(1, len(places) + 1)]
    fewest = min(place.hosts for place in places)
    for index, place in enumerate(places):
        if study["cells"][index] is None or study["cells"][index]["error"] is not None:
            print(f"cell {index + 1} of {len(places)}: {place.workload}, {place.hosts}, {place.rate}", flush=True)
            is_carried = options.held_out is not None and str(place.hosts) in options.held_out.split(",")
            source = records[places.index(place._replace(hosts=fewest))] if is_carried else None
            cell = {**run(options, place, records[index], source), "held_out": place.held_out}
            study["cells"][index] = {**cell, "number": index + 1}
            options.file.write_text(json.dumps(study, indent=1) + "\n", encoding="utf-8")


def run(options: argparse.Namespace, place: Cell, record: Path, source: Path | None) -> dict[str, Any]:
    """Run one comparison. Returns it as a cell, or the end of what it printed as a cell's error."""
    record.parent.mkdir(parents=True, exist_ok=True)
    size = "hosts" if options.links == "shaped" else "workers"
    words = ["compare", place.workload, "--modes", options.modes, "--json", str(record), "--force"]
    words += ["--fabric", f"{options.links}:{size}={place.hosts},rate={place.rate}", *shlex.split(options.compare)]
    done = subprocess.run([sys.executable, "-m", "xbench", *words], capture_output=True, text=True)
    try:
        if done.returncode != 0:
            raise XbenchError(done.stderr.strip()[-500:])
        return {**cell_of(load(record), load(source) if source is not None else None), "record": str(record)}
    except (XbenchError, ValueError) as error:
        print(f"  left out: {error}", flush=True)
        return {"error": str(error), "points": []}


def show(study: dict[str, Any]) -> int:
    """Print errors and skill by group, the order of modes, the regret, and `auto` against `ddp`. Returns 0 if whole."""
    cells = [cell for cell in study["cells"] if cell is not None and cell["points"]]
    complete = len(cells) == len(study["cells"])
    shown = [cell for cell in cells if complete or not cell.get("held_out")]
    print(f"{len(cells)} of {len(study['cells'])} cells measured; predictions are simulated")
    rows = table(shown)
    if rows.empty:
        return 1
    own = rows[rows.predicted_on == rows.workers]
    with pd.option_context("display.width", 160, "display.max_columns", None, "display.float_format", "{:.3f}".format):
        if len(own):
            print(groups(own).to_string())
        for (few, many), sizes in rows[rows.predicted_on != rows.workers].groupby(["predicted_on", "workers"]):
            print(f"predicted for {many} workers from {few}:\n{groups(sizes).to_string()}")
    print("order of two modes:", ", ".join(f"{count} {name}" for name, count in order(shown).items()))
    lost = regret(own)
    if len(lost):
        print(f"regret: median {lost.median():.3f}, 95 % within {percentile95(lost):.3f}, worst {lost.max():.3f}; "
              f"the best in {(lost == 0).sum()} of {len(lost)} cells")  # fmt: skip
    auto = auto_over_ddp(shown)
    if auto is not None:
        print(f"auto over ddp: {auto[0]:.3f}, at most {auto[1]:.3f} with 95 % confidence, over {auto[2]} cells")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
