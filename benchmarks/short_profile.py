"""Rank of `slow_ranks.py`: its profile leaves out what no slow rank or link is named by, and is a third as long.

Left out are ready times under traffic, contention, and the engine's cost. The time of a collective is measured briefly.
"""

from __future__ import annotations

import sys
from typing import Any

from xbench.rank import main, profile_phase


def nothing(*_: Any) -> None:
    """Measure nothing."""


if __name__ == "__main__":
    profile_phase._load_layers = profile_phase._contention = nothing
    profile_phase.QUICK_COLLECTIVES_S = 0.8
    main.main(sys.argv[1:])
