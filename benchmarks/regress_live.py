"""Live checks of the gate: how often does it cry wolf, and how often does it see what is there?

    python benchmarks/regress_live.py [--unchanged 20] [--slowed 10] [--slow 1.10 1.05]
                                        [--check step] [--most N] [--output FILE]

Each check is `xbench regress check --base HEAD --layer wall` in a clone of this repository: some of it as it is, where
any regression is a false alarm, and some with every step of head slowed by one factor and the other (`BUSY`, at the end
of the clone's xbench/regress/rank.py, keeps its ranks busy for that much longer), where the regression should be found.
It is promised from twice this machine's noise floor on (`xbench regress baseline --layer wall` first): where that is
more, that is the slow-down, and the file says so. Checks of all kinds alternate, so that a change of the machine meets
them all. The file is written after every check, and a second call with it goes on where the first ended; `--most` ends
a call after so many.

One check takes about 3 minutes on two cores, and twice that where it suspects something: 20 and 10 checks take 2 hours.
Real compute, real collectives.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from xbench import environment
from xbench.record_files import RESULTS
from xbench.records import Regression, load
from xbench.regress.baseline import folder_of, noise_of

BUSY = """
import time

_train = LaunchRank.train


def _slowed(self, handle, steps, what, mark):
    began_s = time.perf_counter()

    def later():
        nonlocal began_s
        self.device_idle()
        until_s = began_s + {slow} * (time.perf_counter() - began_s)
        while time.perf_counter() < until_s:
            pass
        mark()
        began_s = time.perf_counter()

    _train(self, handle, steps, what, later)


LaunchRank.train = _slowed
"""
START = 'if __name__ == "__main__":'


def cloned(folder: Path, slow: float) -> Path:
    """A clone of this repository, with this machine's noise, whose working tree is so many times as slow."""
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", "--shared", ".", str(clone)], check=True)
    shutil.copytree("results/baselines", clone / "results" / "baselines", dirs_exist_ok=True)
    rank = clone / "xbench" / "regress" / "rank.py"
    if slow > 1:
        rank.write_text(rank.read_text().replace(START, f"{BUSY.format(slow=slow)}\n\n{START}"))
    return clone


def one_check(options: argparse.Namespace, slow: float) -> dict[str, Any]:
    """Run one check, and keep what its verdicts rest on."""
    words = ["regress", "check", "--base", "HEAD", "--layer", "wall", "--config", str(options.config)]
    words += [word for name in options.check for word in ("--check", name)]
    words += ["--pairs", str(options.pairs)] if options.pairs else []
    with tempfile.TemporaryDirectory() as folder:
        record_file = Path(folder) / "record.json"
        command = [sys.executable, "-m", "xbench", *words, "--json", str(record_file)]
        clone = cloned(Path(folder), slow)
        environ = os.environ | {"PYTHONPATH": str(clone), RESULTS: folder}
        done = subprocess.run(command, cwd=clone, env=environ, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 3):
            raise SystemExit(f"a check ended with exit code {done.returncode}:\n{done.stderr[-3000:]}")
        record = load(record_file)
    assert isinstance(record, Regression)
    return {
        "slow_step": slow,
        "floors": [floor.model_dump(mode="json") for floor in record.floors],
        "exit_code": done.returncode,
        "took_s": sum(pair.took_s for pair in (*record.pairs, *record.confirmation)),
        "cases": [case.model_dump(mode="json") for case in record.cases],
        "pairs": _values(record.pairs),
        "confirmation": _values(record.confirmation),
        "warnings": record.warnings,
        "created": record.created,
    }


def promised(options: argparse.Namespace) -> float:
    """The least slow-down that this machine's noise floor lets the gate promise to find, as a factor."""
    noise = noise_of(folder_of(options.config.absolute().parent), environment.capture())
    if noise is None:
        raise SystemExit("this machine's noise floor is not known: xbench regress baseline learns it")
    return 1 + 2 * max(one.floor for one in noise.floors if one.check in options.check)


def _values(pairs: list[Any]) -> list[dict[str, Any]]:
    """Every launch's figures, without the steps that they are medians of."""
    return [
        {
            "first": pair.first,
            **{
                side: {f"{one.check} {one.mode} {one.metric}": one.value for one in getattr(pair, side)}
                for side in ("base", "head")
            },
            "ratio": {f"{one.check} {one.mode} {one.metric}": pair.ratio(one.case) for one in pair.head},
        }
        for pair in pairs
    ]


def summary(checks: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By what was asked for: how many checks, how many found a regression, and how many cases got which verdict."""
    result: dict[str, dict[str, Any]] = {}
    for check in checks:
        row = result.setdefault(f"{check['asked']:g}", {"checks": 0, "regressed": 0, "verdicts": {}})
        row["checks"] += 1
        row["regressed"] += check["exit_code"] == 3
        for case in check["cases"]:
            row["verdicts"][case["verdict"]] = row["verdicts"].get(case["verdict"], 0) + 1
    return result


def main() -> int:
    """Run, count, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unchanged", type=int, default=20, help="checks of the tree as it is")
    parser.add_argument("--slowed", type=int, default=10, help="checks with head slowed")
    parser.add_argument("--slow", type=float, nargs="*", default=[1.10, 1.05])
    parser.add_argument("--config", type=Path, default=Path("xbench.toml"))
    parser.add_argument("--check", nargs="*", default=["step"], help="of the suite")
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--most", type=int, help="checks of this call")
    parser.add_argument("--output", type=Path, default=Path("results/regress-live.json"))
    options = parser.parse_args()
    made: list[dict[str, Any]] = json.loads(options.output.read_text())["checks"] if options.output.exists() else []
    least, left = promised(options), options.most
    for number in range(max(options.unchanged, options.slowed)):
        slowed = options.slow[number % len(options.slow)]
        for asked, wanted in ((1.0, options.unchanged), (slowed, options.slowed)):
            had = sum((check["asked"] > 1) == (asked > 1) for check in made)
            if left == 0 or had > number or number >= wanted:
                continue
            left = left - 1 if left is not None else None
            made.append({"asked": asked, **one_check(options, max(asked, least) if asked > 1 else 1.0)})
            result = {
                "label": "real",
                "made_by": " ".join(["python benchmarks/regress_live.py", *sys.argv[1:]]),
                "environment": environment.capture().model_dump(),
                "found": summary(made),
                "checks": made,
            }
            options.output.write_text(json.dumps(result, indent=1) + "\n")
            verdicts = ", ".join(f"{case['check']} {case['mode']} {case['verdict']}" for case in made[-1]["cases"])
            print(f"check {number + 1} of {wanted}, step x{made[-1]['slow_step']:g}: {verdicts}", flush=True)
    print(f"{json.dumps(summary(made))}; {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
