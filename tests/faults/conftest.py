"""The seed of the day for the share of the fault suite, alike in all workers of a test run."""

from __future__ import annotations

import os
import time

os.environ.setdefault("XBENCH_FAULTS_SEED", time.strftime("%Y%m%d"))


def pytest_report_header() -> str:
    return f"fault suite: XBENCH_FAULTS_SEED={os.environ['XBENCH_FAULTS_SEED']}"
