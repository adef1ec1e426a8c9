"""The seed of the share of the fault suite: the same cases every time, as property tests have by default."""

from __future__ import annotations

import os

os.environ.setdefault("XBENCH_FAULTS_SEED", "0")
