"""A sample of mutants: python -m tests.mutants --seed 0 --count 300 --jobs 2 --output results/mutants.json

Each of them must fail a unit test. One line a mutant, and the survivors at the end. An interrupted command goes on with
the mutants that its output does not hold yet; `--again` judges survivors anew. Exit code 1 where less than 90 % were
caught. A mutant whose tests take too long is caught. `equivalent.toml` lists mutants that do the same as the code, and
why; these do not count.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import heapq
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import Process
from pathlib import Path
from typing import Any

import pytest

from .judge import Overlay, fork
from .mutations import Mutation, mutations
from .reach import ROOT, Known, reaching, record, stale

FOLDERS = ("planning", "stats", "cluster")
TESTS = ("tests/unit/planning", "tests/unit/stats", "tests/unit/cluster")
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
REACH = ROOT / ".cache" / "mutants" / "reach.json"
MIN_SCORE = 0.9
PRELOADED = ("hypothesis", "numpy", "pandas", "pydantic", "rich.console", "scipy.optimize", "scipy.stats")
"""Modules that a mutant's process shares with this one. None of them is part of xbench, which is imported anew."""

UNNOTICED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
POLL_S = 0.05
STARTS_S = 20.0
SLOWER = 10.0
"""A test of a mutant may take `STARTS_S`, and this many times what it took when it was recorded."""

MAX_S = 900.0
"""Limit [s] of one mutant, for what a test's own limit cannot end."""


@dataclass(frozen=True)
class Mutant(Mutation):
    """A mutation of one file, as a path below xbench/."""

    file: str

    @property
    def key(self) -> str:
        """Name that does not depend on lines."""
        return f"{self.file}:{self.function}:{self.change}:{self.nth}"


def sample(seed: int, count: int) -> list[Mutant]:
    """The mutants whose digests are least, so that a change elsewhere leaves most of the sample as it was."""
    every = (
        Mutant(**asdict(mutation), file=str(path.relative_to(ROOT / "xbench")))
        for folder in FOLDERS
        for path in sorted((ROOT / "xbench" / folder).rglob("*.py"))
        if "live" not in path.parts
        for mutation in mutations(ast.parse(path.read_text(encoding="utf-8")))
    )
    return heapq.nsmallest(count, every, key=lambda one: hashlib.sha256(f"{seed}:{one.key}".encode()).digest())


def main(argv: Sequence[str] | None = None) -> int:
    """Judge the sample: 0 when enough mutants were caught."""
    asked = _options().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asked.output = asked.output.resolve()
    os.chdir(ROOT)
    equivalent = {one["key"]: one["reason"] for one in tomllib.loads(EQUIVALENT.read_text()).get("equivalent", [])}
    kept = {one["key"]: one for one in json.loads(asked.output.read_text())["mutants"]} if asked.output.exists() else {}
    mutants = {one.key: one for one in sample(asked.seed, asked.count)}
    kept = {key: kept[key] | asdict(mutants[key]) for key in mutants if key in kept}
    settled = ("caught",) if asked.again else ("caught", "survived")
    kept = {key: one for key, one in kept.items() if one["result"] in settled}
    try:
        for key in mutants.keys() & equivalent.keys():
            kept[key] = {"key": key, **asdict(mutants[key]), "result": "equivalent", "reason": equivalent[key]}
        todo = [one for key, one in mutants.items() if key not in kept]
        for mutant, result, took_s in _judged(todo[: asked.most], asked.jobs):
            kept[mutant.key] = {"key": mutant.key, **asdict(mutant), "result": result, "took_s": round(took_s, 1)}
            print(f"[{len(kept)}/{len(mutants)}] {result:8} {_line(kept[mutant.key])}", flush=True)
            _write(asked, kept)
    except KeyboardInterrupt:
        print("interrupted: the same command goes on", file=sys.stderr)
        return 130
    _write(asked, kept)
    return _summary(asked.output)


def _judged(mutants: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, str, float]]:
    """Each mutant with its result and seconds, as they come."""
    known = _known()
    for name in PRELOADED:
        importlib.import_module(name)
    if mutants:
        _control(known)
    waiting = list(reversed(mutants))
    running: dict[int, tuple[Mutant, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                mutant = waiting.pop()
                overlay, lines = _overlay(mutant)
                tests = reaching(known, mutant.file, lines)
                if not tests:
                    yield mutant, "survived", 0.0
                    continue
                limits_s = {name: STARTS_S + SLOWER * took_s for took_s, name in tests}
                running[fork(overlay, limits_s)] = (mutant, time.monotonic())
            time.sleep(POLL_S)
            for child, (mutant, began) in list(running.items()):
                late = time.monotonic() > began + MAX_S
                if late:
                    os.killpg(child, signal.SIGKILL)
                ended, status = os.waitpid(child, 0 if late else os.WNOHANG)
                if ended:
                    del running[child]
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child, signal.SIGKILL)  # what its tests may have started
                    survived = not late and os.waitstatus_to_exitcode(status) in UNNOTICED
                    yield mutant, "survived" if survived else "caught", time.monotonic() - began
    finally:
        for child in running:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _control(known: dict[str, Known]) -> None:
    """Judge code that is not changed by the fastest test of each file. Raises SystemExit where that fails."""
    path = ROOT / "xbench" / "planning" / "cost.py"
    overlay = Overlay("xbench.planning.cost", path, compile(path.read_text(encoding="utf-8"), str(path), "exec"))
    fastest = [min(seen["tests"], key=lambda name: seen["tests"][name][0]) for seen in known.values() if seen["tests"]]
    _, status = os.waitpid(fork(overlay, dict.fromkeys(fastest, MAX_S)), 0)
    if status:
        raise SystemExit("tests fail in a mutant's process without a mutation: no result would mean anything")


def _overlay(mutant: Mutant) -> tuple[Overlay, range | None]:
    """The mutated module, and the lines of the function that changes; None at module level."""
    path = ROOT / "xbench" / mutant.file
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lines = _lines(tree, mutant)
    parts = ("xbench", *Path(mutant.file).with_suffix("").parts)
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    for mutation in mutations(tree):
        if (mutation.function, mutation.change, mutation.nth) == (mutant.function, mutant.change, mutant.nth):
            return Overlay(name, path, compile(tree, str(path), "exec")), lines
    raise LookupError(mutant.key)


def _lines(tree: ast.Module, mutant: Mutant) -> range | None:
    """Lines of the outermost function around a mutation, with its decorators; None outside of functions."""
    around: Any = tree
    for name in mutant.function.split(".") if mutant.function else []:
        named = [node for node in around.body if getattr(node, "name", None) == name]
        around = next((node for node in named if node.lineno <= mutant.line <= node.end_lineno), named[0])
    if not isinstance(around, ast.FunctionDef):
        return None
    first = min([around.lineno, *(decorator.lineno for decorator in around.decorator_list)])
    return range(first, (around.end_lineno or first) + 1)


def _known() -> dict[str, Known]:
    """The map of the tests, recorded again as far as it is stale."""
    files = sorted(str(path.relative_to(ROOT)) for folder in TESTS for path in (ROOT / folder).rglob("test_*.py"))
    if again := stale(files, REACH):
        print(f"recording what {len(again)} test files reach", flush=True)
        process = Process(target=record, args=(again, REACH))
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit("the tests must pass before mutants can fail them")
    known = json.loads(REACH.read_text())
    return {file: known[file] for file in files}


def _write(asked: argparse.Namespace, kept: dict[str, dict[str, Any]]) -> None:
    """Replace the output by a file with these results."""
    mutants = sorted(kept.values(), key=lambda one: (one["file"], one["line"], one["change"]))
    results = [one["result"] for one in mutants]
    counted = results.count("caught") + results.count("survived")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    whole = {
        "seed": asked.seed,
        "count": asked.count,
        "commit": commit,
        "judged": len(mutants),
        **{result: results.count(result) for result in ("caught", "survived", "equivalent")},
        "score": round(results.count("caught") / counted, 4) if counted else None,
        "mutants": mutants,
    }
    beside = asked.output.with_suffix(".part")
    beside.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    beside.replace(asked.output)


def _summary(output: Path) -> int:
    found = json.loads(output.read_text())
    for one in found["mutants"]:
        if one["result"] == "survived":
            print(f"survived: {_line(one)}")
    score = found["score"]
    told = "no score" if score is None else f"{score:.1%} caught"
    print(
        f"{found['judged']} of {found['count']} judged: {found['caught']} caught, {found['survived']} survived, "
        f"{found['equivalent']} equivalent: {told}"
    )
    return int(score is None or score < MIN_SCORE)


def _line(one: dict[str, Any]) -> str:
    return f"xbench/{one['file']}:{one['line']} {one['function']}: {one['change']}"


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--count", type=int, default=300, metavar="N", help="so many mutants in the sample")
    parser.add_argument("--most", type=int, metavar="N", help="judge at most so many now")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many mutants at a time")
    parser.add_argument("--again", action="store_true", help="judge survivors anew")
    parser.add_argument("--output", type=Path, required=True, help="where results are kept, and found again")
    return parser


if __name__ == "__main__":
    sys.exit(main())
