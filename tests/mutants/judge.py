"""One mutant, judged in a process forked from one that has imported what the tests need besides the package.

The mutated module is compiled from the changed syntax tree when the tests import it: no file changes.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import NoReturn

import pytest

MEMORY_BYTES = 4 * 2**30
"""Most memory of a mutant: one that loops may allocate without end."""


class Overlay(importlib.abc.MetaPathFinder):
    """Finds one module, and gives it other code."""

    def __init__(self, name: str, path: Path, code: CodeType) -> None:
        self.name, self.path, self.code = name, path, code

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module of that name, as its own file would give it but for the code."""
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=_Loader(name, str(self.path), self.code))


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self.code = code

    def get_code(self, fullname: str) -> CodeType:
        return self.code


class Chosen:
    """A pytest plugin that keeps these tests alone, in this order, and ends the process where one takes too long."""

    def __init__(self, limits_s: Mapping[str, float]) -> None:
        self.limits_s = limits_s

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """See the class."""
        found = {item.nodeid: item for item in items}
        items[:] = [found[name] for name in self.limits_s if name in found]
        for item in items:
            item.add_marker(pytest.mark.timeout(self.limits_s[item.nodeid], method="thread"))


def fork(overlay: Overlay, limits_s: Mapping[str, float]) -> int:
    """Start to run these tests on the mutant, each with its limit; returns the id of the process, which leads a group.

    It exits with 0 if the mutant survived.
    """
    sys.stdout.flush()
    child = os.fork()
    return child if child else _run(overlay, limits_s)


def _run(overlay: Overlay, limits_s: Mapping[str, float]) -> NoReturn:
    code = 3
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        os.environ["XBENCH_TEST_SHRINK"] = "0"
        sys.meta_path.insert(0, overlay)
        files = list(dict.fromkeys(name.split("::")[0] for name in limits_s))
        code = pytest.main([*files, "-x", "-q", "-p", "no:cacheprovider"], plugins=[Chosen(limits_s)])
    finally:
        os._exit(code)
