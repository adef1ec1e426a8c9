"""A rank on a CPU whose profile takes the path of a GPU: no contention, but launches and one more load.

The command line starts it in the place of `xbench.rank.main`.
"""

from __future__ import annotations

import sys
from typing import Any

from xbench.rank import profile_phase
from xbench.rank.main import main


def without_contention(session: Any, found: Any, cost: Any) -> Any:
    profile_phase._load_each(session, found, cost)
    found.keep(session)
    return profile_phase._launches(session, found)


if __name__ == "__main__":
    profile_phase._contention = without_contention
    main(sys.argv[1:])
