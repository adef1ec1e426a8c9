"""Which unit tests reach which function, and how long each takes.

A test reaches the functions that it enters, and those that its file enters while it is collected. The map of a test
file is kept until that file, the package, or what tests share has changed.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypedDict

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "xbench"


class Known(TypedDict):
    """One test file: its digest, the functions entered, and by test its seconds and the functions it entered."""

    digest: str
    functions: list[str]
    collected: list[int]
    tests: dict[str, tuple[float, list[int]]]


class Recorder:
    """A pytest plugin that notes the functions of the package that are entered, as 'path:line of def'."""

    def __init__(self) -> None:
        self.collected: dict[str, set[str]] = {}
        self.tests: dict[str, tuple[float, set[str]]] = {}
        self._entered: set[CodeType] = set()

    def _enter(self, frame: FrameType, event: str, arg: object) -> None:
        self._entered.add(frame.f_code)

    def _taken(self) -> set[str]:
        entered, self._entered = self._entered, set()
        inside = f"{PACKAGE}/"
        return {
            f"{code.co_filename.removeprefix(inside)}:{code.co_firstlineno}"
            for code in entered
            if code.co_filename.startswith(inside) and code.co_flags & inspect.CO_OPTIMIZED  # no bodies of classes
        }

    @pytest.hookimpl(hookwrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, Any, None]:
        """Note what a file enters at its import."""
        sys.settrace(self._enter)
        yield
        sys.settrace(None)
        self.collected.setdefault(collector.nodeid.split("::")[0], set()).update(self._taken())

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, None]:
        """Note what a test enters, with its fixtures."""
        began = time.perf_counter()
        sys.settrace(self._enter)
        yield
        sys.settrace(None)
        self.tests[item.nodeid] = (time.perf_counter() - began, self._taken())

    def known(self, file: str, digest: str) -> Known:
        """Findings on one test file. Skipped tests are among its tests."""
        tests = {name: seen for name, seen in self.tests.items() if name.split("::")[0] == file}
        functions = sorted(self.collected.get(file, set()).union(*(entered for _, entered in tests.values())))
        at = {name: index for index, name in enumerate(functions)}
        return {
            "digest": digest,
            "functions": functions,
            "collected": sorted(at[name] for name in self.collected.get(file, ())),
            "tests": {
                name: (round(took_s, 3), sorted(at[one] for one in entered))
                for name, (took_s, entered) in tests.items()
            },
        }


def digests(files: Iterable[str]) -> dict[str, str]:
    """Digest of each test file, with the package and with what stands beside the file and above it."""
    package = _digest(PACKAGE.rglob("*.py"))
    return {
        file: _digest(
            (path for folder in [*Path(file).parents][:-1] for path in (ROOT / folder).glob("*.py")
             if path == ROOT / file or not path.name.startswith("test_")), package
        ) for file in files
    }  # fmt: skip


def _digest(paths: Iterable[Path], before: str = "") -> str:
    return hashlib.sha256(before.encode() + b"".join(path.read_bytes() for path in sorted(paths))).hexdigest()


def record(files: Sequence[str], output: Path) -> None:
    """Run these test files and add what they reach to `output`. For a process of its own."""
    known = json.loads(output.read_text()) if output.exists() else {}
    recorder, before = Recorder(), digests(files)
    code = pytest.main([*files, "-q", "-p", "no:cacheprovider"], plugins=[recorder])
    if code:
        raise SystemExit(int(code))
    for file, digest in before.items():
        known[file] = recorder.known(file, digest)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(known))


def stale(files: Sequence[str], output: Path) -> list[str]:
    """The files whose map is missing or older than what it was made of."""
    known = json.loads(output.read_text()) if output.exists() else {}
    return [file for file, digest in digests(files).items() if known.get(file, {}).get("digest") != digest]


def reaching(known: dict[str, Known], file: str, lines: range | None) -> list[tuple[float, str]]:
    """(seconds, test) of the tests that reach a function of a file of the package, the fastest first.

    `lines` are those of the function, decorators and inner functions included; None: any function of the file.
    """
    found = []
    for seen in known.values():
        wanted = {
            at
            for at, name in enumerate(seen["functions"])
            if name.rpartition(":")[0] == file and (lines is None or int(name.rpartition(":")[2]) in lines)
        }
        at_import = not wanted.isdisjoint(seen["collected"])
        found += [
            (took_s, name) for name, (took_s, entered) in seen["tests"].items()
            if at_import or not wanted.isdisjoint(entered)
        ]  # fmt: skip
    return sorted(found)
