"""The ledger of lines and words: no part grows past its line in tests/architecture/budget.toml.

`XBENCH_UPDATE_GOLDEN=1 pytest tests/unit/test_ledger.py` lowers the lines to what there is now, and raises none.
Whoever needs more room raises a line by hand, and says in the commit's body what it buys and what was taken out for it.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEDGER = ROOT / "tests" / "architecture" / "budget.toml"
BUDGET = tomllib.loads(LEDGER.read_text(encoding="utf-8"))
PROSE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def _lines(*paths: Path) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in paths)


def _sources(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def _counted() -> dict[str, dict[str, int]]:
    """Python lines of each package of xbench and of its files at the top, of tests, golden data, and words of docs."""
    root = ROOT / "xbench"
    packages = {path.name: _lines(*_sources(path)) for path in sorted(root.iterdir()) if any(path.glob("*.py"))}
    pages = [*sorted((ROOT / "docs").glob("*.md")), *(ROOT / name for name in PROSE)]
    golden = [path for path in sorted((ROOT / "tests" / "golden").rglob("*")) if path.is_file()]
    return {
        "packages": {"top": _lines(*sorted(root.glob("*.py"))), **packages},
        "whole": {
            "xbench_lines": _lines(*_sources(root)),
            "xbench_files": len(_sources(root)),
            "tests_lines": _lines(*_sources(ROOT / "tests")),
            "golden_lines": _lines(*golden),
            "docs_words": sum(len(page.read_text(encoding="utf-8").split()) for page in pages),
        },
    }


COUNTED = _counted()


def _lowered() -> str:
    """Return the ledger with every line at its count, where that is lower; a part that is gone has none."""
    texts = []
    for table, counts in COUNTED.items():
        rows = [f"{name} = {min(count, BUDGET[table].get(name, count))}\n" for name, count in counts.items()]
        texts.append(f"[{table}]\n{''.join(rows)}")
    heading = "".join(
        line for line in LEDGER.read_text(encoding="utf-8").splitlines(keepends=True) if line.startswith("#")
    )
    return heading + "\n" + "\n".join(texts)


def test_the_ledger_names_every_part() -> None:
    if os.environ.get("XBENCH_UPDATE_GOLDEN"):
        LEDGER.write_text(_lowered(), encoding="utf-8")
    assert {table: set(counts) for table, counts in COUNTED.items()} == {
        table: set(limits) for table, limits in tomllib.loads(LEDGER.read_text(encoding="utf-8")).items()
    }


@pytest.mark.parametrize(("table", "name"), [(table, name) for table in COUNTED for name in COUNTED[table]])
def test_no_part_grows_past_its_line(table: str, name: str) -> None:
    assert COUNTED[table][name] <= BUDGET[table].get(name, 0)
