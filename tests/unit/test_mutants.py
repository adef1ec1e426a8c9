"""Mutations of a small module, the tests that reach them, and the code that replaces a module."""

from __future__ import annotations

import ast
import importlib
import json
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from mutants import __main__ as command
from mutants.judge import Overlay
from mutants.mutations import mutations
from mutants.reach import Known, reaching

SOURCE = '''
MOST = 4
FAR = 500

def worst(a: int, *, b: float = 1.5) -> int | None:
    """Larger by 1."""
    if a < 0 and not b:
        raise ValueError(f"{a + 1}")
    a += 2
    return max(a, 3)

class Least:
    @property
    def size(self) -> int:
        assert self.n > 0
        return -self.n
'''


def test_every_mutation_is_made_once_and_undone() -> None:
    tree = ast.parse(SOURCE)
    before = ast.unparse(tree)
    changes = []
    for mutation in mutations(tree):
        assert ast.unparse(tree) != before
        changes.append((mutation.function, mutation.change))
    assert ast.unparse(tree) == before
    assert changes == [
        ("", "MOST = 4 → MOST = 5"),
        ("", "MOST = 4 → MOST = 3"),
        ("", "FAR = 500 → FAR = 1000"),
        ("", "FAR = 500 → FAR = 250"),
        ("worst", "a: int, *, b: float=1.5 → a: int, *, b: float=2.5"),
        ("worst", "a: int, *, b: float=1.5 → a: int, *, b: float=0.5"),
        ("worst", "a < 0 and (not b) → a < 0 or not b"),
        ("worst", "a < 0 and (not b) → not (a < 0 and (not b))"),
        ("worst", "a < 0 → a <= 0"),
        ("worst", "a < 0 → a < 1"),
        ("worst", "a < 0 → a < -1"),
        ("worst", "not b → b"),
        ("worst", "raise ValueError(f'{a + 1}') → pass"),
        ("worst", "a += 2 → a -= 2"),
        ("worst", "a += 2 → pass"),
        ("worst", "a += 2 → a += 3"),
        ("worst", "a += 2 → a += 1"),
        ("worst", "return max(a, 3) → return None"),
        ("worst", "max(a, 3) → min(a, 3)"),
        ("worst", "max(a, 3) → max(a, 4)"),
        ("worst", "max(a, 3) → max(a, 2)"),
        ("Least.size", "return -self.n → return None"),
        ("Least.size", "-self.n → self.n"),
    ]


def test_equal_changes_of_one_function_are_told_apart() -> None:
    assert [mutation.nth for mutation in mutations(ast.parse("a = b + c\nd = b + c"))] == [1, 2]


def test_an_overlay_gives_one_module_other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the limit notices the mutant, a test of any other value does not; the file stays as it is."""
    path = tmp_path / "limited.py"
    path.write_text("def allowed(n):\n    return n < 4\n", encoding="utf-8")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    tree = ast.parse(path.read_text())
    seen = {}
    for mutation in mutations(tree):
        sys.meta_path.insert(0, Overlay("limited", path, compile(tree, str(path), "exec")))
        allowed = importlib.import_module("limited").allowed
        seen[mutation.change] = [allowed(n) for n in (0, 4)]
        del sys.modules["limited"], sys.meta_path[0]
    assert seen == {
        "return n < 4 → return None": [None, None],
        "n < 4 → n <= 4": [True, True],
        "n < 4 → n < 5": [True, True],
        "n < 4 → n < 3": [True, False],
    }
    assert path.read_text() == "def allowed(n):\n    return n < 4\n"


def test_tests_that_reach_a_function_the_fastest_first() -> None:
    known: dict[str, Known] = {
        "test_a.py": {
            "digest": "",
            "functions": ["cost.py:10", "cost.py:30", "turns.py:10"],
            "collected": [1],
            "tests": {"test_a.py::slow": (2.0, [0]), "test_a.py::fast": (1.0, [0, 2]), "test_a.py::other": (0.5, [2])},
        },
        "test_b.py": {
            "digest": "",
            "functions": ["cost.py:10"],
            "collected": [],
            "tests": {"test_b.py::b": (1.5, [0])},
        },
    }
    names = {
        lines: [name.split("::")[1] for _, name in reaching(known, "cost.py", lines)]
        for lines in (range(9, 20), range(25, 40), range(50, 60), None)
    }
    assert names == {
        range(9, 20): ["fast", "b", "slow"],
        range(25, 40): ["other", "fast", "slow"],  # the file enters it at its import
        range(50, 60): [],
        None: ["other", "fast", "b", "slow"],
    }


def test_a_run_goes_on_and_counts_no_equivalent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = [command.Mutant("f", 1, f"{n} → 0", 1, "a.py") for n in range(1, 5)]
    asked: list[str] = []

    def judged(mutants: Sequence[command.Mutant], jobs: int) -> Iterator[tuple[command.Mutant, str, float]]:
        for mutant in mutants:
            if len(asked) == 2 and not cut:
                cut.append(True)
                raise KeyboardInterrupt
            asked.append(mutant.change)
            yield mutant, "survived" if mutant.change == "1 → 0" else "caught", 0.0

    cut: list[bool] = []
    table = tmp_path / "equivalent.toml"
    table.write_text('[[equivalent]]\nkey = "a.py:f:4 → 0:1"\nreason = "never used"\n', encoding="utf-8")
    monkeypatch.setattr(command, "sample", lambda seed, count: drawn)
    monkeypatch.setattr(command, "_judged", judged)
    monkeypatch.setattr(command, "EQUIVALENT", table)
    output = tmp_path / "mutants.json"
    words = ["--count", "4", "--output", str(output)]
    assert command.main(words) == 130
    assert command.main(words) == 1
    assert asked == ["1 → 0", "2 → 0", "3 → 0"]
    found: dict[str, Any] = json.loads(output.read_text())
    assert (found["judged"], found["caught"], found["survived"], found["equivalent"]) == (4, 2, 1, 1)
    assert found["score"] == 0.6667
    assert "survived: xbench/a.py:1 f: 1 → 0" in capsys.readouterr().out
    assert command.main([*words, "--again"]) == 1
    assert asked[3:] == ["1 → 0"]


def test_the_sample_hardly_changes_with_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "xbench" / "stats"
    folder.mkdir(parents=True)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    lines = [f"def f{n}(a):\n    return a + {n}\n" for n in range(2, 40)]
    (folder / "a.py").write_text("".join(lines), encoding="utf-8")
    first = {mutant.key for mutant in command.sample(0, 20)}
    (folder / "a.py").write_text("\n# one line more\n" + "".join(lines[1:]), encoding="utf-8")
    again = {mutant.key for mutant in command.sample(0, 20)}
    assert len(first) == 20
    assert len(again - first) == len({key for key in first if ":f2:" in key}) <= 4
    assert first != {mutant.key for mutant in command.sample(1, 20)}


def test_equivalent_mutants_are_listed_once_with_a_reason() -> None:
    listed = tomllib.loads(command.EQUIVALENT.read_text())["equivalent"]
    assert len({one["key"] for one in listed}) == len(listed)
    assert all(set(one) == {"key", "reason"} for one in listed)
