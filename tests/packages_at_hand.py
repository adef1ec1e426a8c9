"""Packages of `tests/packages`, installed for the processes that a test starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def installed(folder: Path, package: str, modes: Mapping[str, str]) -> dict[str, str]:
    """The environment in which this package adds these modes; `folder` gets its metadata.

    `modes` has the object of each mode's entry point by the mode's name: 'xbench_pairs:PAIRS'.
    """
    told = folder / f"{package}-1.0.dist-info"
    told.mkdir()
    name = package.replace("_", "-")
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    points = "".join(f"{mode} = {target}\n" for mode, target in modes.items())
    (told / "entry_points.txt").write_text(f"[xbench.modes]\n{points}", encoding="utf-8")
    places = [str(folder), str(Path(__file__).parent / "packages"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
