"""The whole suite: python -m tests.faults --all --draws 200 --seed 0 --jobs 2 --output results/faults.json

One line a case, and a table at the end. An interrupted command goes on with the cases that its output does not hold
yet; `--again` runs those anew that did not hold. Exit code 1 where a rule was broken.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from .case import Case
from .draws import as_case, draw
from .suite import TITLES, all_cases, run

ROOT = Path(__file__).parents[2]


POLL_S = 0.1


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for: 0 when every rule held."""
    asked = _options().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    chosen = _chosen(asked)
    if asked.one is not None:
        with contextlib.suppress(KeyboardInterrupt):
            print(json.dumps(vars(run(chosen[asked.one]))))
            return 0
        return 130
    if asked.list:
        print("\n".join(chosen))
        return 0
    if not chosen:
        print("nothing was chosen: --all, --only PATTERN or --draws N", file=sys.stderr)
        return 2
    kept = _kept(asked.output)
    if asked.again:
        kept = {name: result for name, result in kept.items() if not result["broken"]}
    began = time.monotonic()
    try:
        for result in _results([name for name in chosen if name not in kept], asked):
            kept[result.pop("name")] = result
            name = list(kept)[-1]
            print(f"[{sum(one in kept for one in chosen)}/{len(chosen)}] {_line(name, result)}", flush=True)
            _write(asked.output, asked.seed, kept)
    except KeyboardInterrupt:
        print("interrupted: the same command goes on", file=sys.stderr)
        return 130
    here = {name: kept[name] for name in chosen}
    print(f"\n{_table(here)}\n{(time.monotonic() - began) / 60:.0f} minutes")
    return int(any(result["broken"] for result in here.values()))


def _results(names: Sequence[str], asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The results of cases as they come, each case in a process of its own, `--jobs` of them at a time."""
    waiting = list(reversed(names))
    running: dict[str, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
    words = [sys.executable, "-m", "tests.faults", "--all", "--draws", str(asked.draws), "--seed", str(asked.seed)]
    try:
        while waiting or running:
            while waiting and len(running) < asked.jobs:
                name = waiting.pop()
                told: IO[bytes] = tempfile.TemporaryFile()
                running[name] = (subprocess.Popen([*words, "--one", name], cwd=ROOT, stdout=told), told)
            time.sleep(POLL_S)
            for name in [name for name, (process, _) in running.items() if process.poll() is not None]:
                process, told = running.pop(name)
                told.seek(0)
                with told:
                    text = told.read()
                if process.returncode:
                    yield {"name": name, "broken": [f"the suite itself ended with {process.returncode}"], "seen": {},
                           "skipped": None}  # fmt: skip
                else:
                    yield json.loads(text)
    finally:
        for process, _ in running.values():
            process.send_signal(signal.SIGINT)
        for process, _ in running.values():
            process.wait()


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="every case of the table")
    parser.add_argument(
        "--only", action="append", default=[], metavar="PATTERN", help="cases and draws whose name matches"
    )
    parser.add_argument("--draws", type=int, default=0, metavar="N", help="so many random draws")
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    parser.add_argument("--output", type=Path, help="where results are kept, and found again")
    parser.add_argument("--again", action="store_true", help="run those anew that did not hold")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many cases at a time")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--list", action="store_true", help="name what was chosen, and run nothing")
    return parser


def _chosen(asked: argparse.Namespace) -> dict[str, Case]:
    table = all_cases() if asked.all or asked.only else {}
    drawn = [as_case(one) for one in draw(asked.seed, asked.draws)]
    table |= {one.name: one for one in drawn}
    if not asked.only:
        return table
    return {name: one for name, one in table.items() if any(fnmatch.fnmatch(name, pattern) for pattern in asked.only)}


def _kept(output: Path | None) -> dict[str, Any]:
    if output is None or not output.exists():
        return {}
    cases: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))["cases"]
    return cases


def _write(output: Path | None, seed: int, kept: dict[str, Any]) -> None:
    if output is None:
        return
    content = {
        "command": shlex.join(["python", "-m", "tests.faults", *sys.argv[1:]]),
        "seed": seed,
        "commit": subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True
        ).stdout.strip(),
        "machine": f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}",
        "summary": _summary(kept),
        "cases": kept,
    }
    part = output.with_name(f".{output.name}.part")
    part.write_text(json.dumps(content, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")
    part.replace(output)


def _line(name: str, result: dict[str, Any]) -> str:
    if result["skipped"]:
        return f"{name}: skipped, {result['skipped']}"
    seconds = result["seen"].get("seconds", 0)
    if not result["broken"]:
        return f"{name}: held, {seconds} s"
    return f"{name}: BROKEN, {seconds} s\n    " + "\n    ".join(result["broken"])


def _summary(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By family: its title, and how many cases were run, held, broken and skipped."""
    found: dict[str, dict[str, Any]] = {}
    for family in TITLES:
        mine = [result for name, result in results.items() if name.partition("-")[0] == family]
        if mine:
            skipped = sum(result["skipped"] is not None for result in mine)
            broken = sum(bool(result["broken"]) for result in mine)
            found[family] = {
                "title": TITLES[family],
                "run": len(mine) - skipped,
                "held": len(mine) - skipped - broken,
                "broken": broken,
                "skipped": skipped,
            }
    return found


def _table(results: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [("", "family", "run", "held", "broken", "skipped")]
    summary = _summary(results)
    rows += [(family, *(str(fact) for fact in facts.values())) for family, facts in summary.items()]
    totals = [sum(counts[key] for counts in summary.values()) for key in ("run", "held", "broken", "skipped")]
    rows.append(("", "all", *map(str, totals)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


if __name__ == "__main__":
    sys.exit(main())
