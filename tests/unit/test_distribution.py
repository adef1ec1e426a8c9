"""No line may tell anybody to install PyPI's `xbench`, which is somebody else's project."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import xbench

ROOT = Path(__file__).parents[2]
STRANGER = re.compile(r"pip3? install\b[^\n`|;&]*?[\s'\"]xbench(?![\w./-])")
"""`pip install xbench`, with other words, extras or a version as well; no path and no other name."""


@pytest.mark.parametrize(
    ("rest", "stranger"),
    [
        *((rest, True) for rest in ("xbench", "-U xbench -e .", "'xbench[converge]'", "xbench==1", '"xbench>=1"')),
        *((rest, False) for rest in ("'xbench-schedules[converge]'", ".", "./xbench", "xbench/", "-e xbench.d")),
    ],
)
def test_the_pattern_finds_a_stranger_alone(rest: str, stranger: bool) -> None:
    assert bool(STRANGER.search(f"run `python -m pip install {rest}` first")) == stranger


def test_no_tracked_file_tells_anybody_to_install_the_stranger() -> None:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = [
        f"{name}: {line.strip()}"
        for name in names.split("\0")
        if name and (ROOT / name).is_file() and ROOT / name != Path(__file__)
        for line in (ROOT / name).read_text(encoding="utf-8", errors="replace").splitlines()
        if "pip" in line and STRANGER.search(line)
    ]
    assert found == []


def test_the_distribution_has_a_name_of_its_own_and_the_package_s_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["name"] == "xbench-schedules"
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "xbench.version.__version__"}
    assert list(project["project"]["scripts"]) == ["xbench"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", xbench.__version__)
