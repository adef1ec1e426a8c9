"""Public files that are too large for the repository: tests read them from the folder that XBENCH_TRACES names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SOURCES = {
    "itp/raw-traces.tar.gz": "`xbench cluster compare --trace itp` fetches it",
    "philly/philly.csv.gz": "`xbench cluster compare --trace philly` fetches philly.csv, which gzip packs",
    "pollux/workloads": "`xbench cluster compare --trace pollux` fetches them",
}


def public_file(place: str) -> Path:
    """The file or folder; the test is skipped, saying where to get it, if XBENCH_TRACES does not have it."""
    path = Path(os.environ.get("XBENCH_TRACES", "")) / place
    if "XBENCH_TRACES" not in os.environ or not path.exists():
        pytest.skip(f"XBENCH_TRACES has no {place}: {SOURCES[place]}")
    return path
