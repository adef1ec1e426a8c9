"""All cases by name, which of them this machine can run, one run of one case, and the file that keeps results."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import random
import subprocess
import traceback
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import (
    family_commands,
    family_environment,
    family_limits,
    family_parent,
    family_ranks,
    family_several,
)
from .case import Case, has
from .harness import case_folder
from .verdict import wrong

FAMILIES = (family_ranks, family_parent, family_limits, family_environment, family_several, family_commands)
TITLES = {
    "A": "faults inside a rank",
    "P": "faults in the probe of the model",
    "B": "a rank, agent, arbiter or the parent hurt from outside",
    "C": "signals to the parent",
    "D": "links changed under the run",
    "E": "disk and limits",
    "F": "environment and users",
    "G": "several at once, and leftovers",
    "H": "closed outputs, terminals",
    "R": "the other commands",
    "draw": "random draws",
}

KEPT = ("code", "seconds", "units", "errors", "left")
"""Fields that the results keep of a case that held; of one that did not they keep everything."""


def all_cases() -> dict[str, Case]:
    """Every case of the table. Raises ValueError for a name that stands twice."""
    found: dict[str, Case] = {}
    for family in FAMILIES:
        for one in family.cases():
            if one.name in found:
                raise ValueError(f"two cases are named {one.name}")
            found[one.name] = one
    return found


def missing(one: Case) -> str | None:
    """First need of a case that this machine lacks, or None."""
    return next((need for need in sorted(one.needs) if not has(need)), None)


def share(cases: Iterable[Case], count: int, seed: int) -> list[Case]:
    """So many cases, drawn from all families in turn."""
    chance = random.Random(seed)
    families: dict[str, list[Case]] = defaultdict(list)
    for one in cases:
        families[one.family].append(one)
    for members in families.values():
        chance.shuffle(members)
    drawn: list[Case] = []
    while len(drawn) < count and any(families.values()):
        drawn += [members.pop() for members in families.values() if members]
    return drawn[:count]


@dataclass(frozen=True)
class Result:
    """Result of one case: `broken` has a sentence for each rule that does not hold."""

    name: str
    broken: list[str]
    seen: dict[str, Any]
    skipped: str | None = None


def run(one: Case) -> Result:
    """Run a case. What goes wrong in the suite itself counts as broken."""
    if (need := missing(one)) is not None:
        return Result(one.name, [], {}, skipped=f"needs {need}")
    try:
        with case_folder() as folder:
            seen = one.look(folder)
    except Exception:
        return Result(one.name, [f"the suite itself failed: {traceback.format_exc(limit=-3)}"], {})
    broken = wrong(one.expected, seen)
    facts = seen.summary()
    return Result(one.name, broken, facts if broken else {key: facts[key] for key in KEPT if key in facts})


def kept(output: Path | None) -> dict[str, Any]:
    """Results by name that a file holds; none where there is no file."""
    if output is None or not output.exists():
        return {}
    cases: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))["cases"]
    return cases


def keep(output: Path, seed: int, result: Result) -> None:
    """Add a result to the file, beside other processes that do."""
    with open(__file__) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        facts = vars(result)
        cases = kept(output) | {facts["name"]: {key: fact for key, fact in facts.items() if key != "name"}}
        head = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=10", "HEAD"]
        content = {
            "command": f"XBENCH_FAULTS_OUTPUT={output} pytest tests/faults/test_faults.py",
            "seed": seed,
            "commit": subprocess.run(head, capture_output=True, text=True).stdout.strip(),
            "machine": f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}",
            "summary": summary(cases),
            "cases": cases,
        }
        part = output.with_name(f".{output.name}.part")
        part.write_text(json.dumps(content, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")
        part.replace(output)


def summary(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the title of each family, and how many of its cases were run, held, broken and skipped."""
    found: dict[str, dict[str, Any]] = {}
    for family in TITLES:
        mine = [result for name, result in results.items() if name.partition("-")[0] == family]
        if mine:
            skipped = sum(result["skipped"] is not None for result in mine)
            broken = sum(bool(result["broken"]) for result in mine)
            run, held = len(mine) - skipped, len(mine) - skipped - broken
            found[family] = {"title": TITLES[family], "run": run, "held": held, "broken": broken, "skipped": skipped}
    return found
