"""A share of cases that cost much, drawn from XBENCH_FAULTS_SEED. `make test-all` runs all of them.

Make sets it to a number of the commit; without make it is 0.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

Case = TypeVar("Case")
SEED = int(os.environ.get("XBENCH_FAULTS_SEED", "0"))
ALL = os.environ.get("XBENCH_TEST_ALL") == "1"


def drawn(name: str, cases: Sequence[Case], count: int = 1) -> list[Case]:
    """So many of the cases, in their order; the name keeps one draw from deciding another."""
    if ALL:
        return list(cases)
    places = random.Random(f"{SEED}/{name}").sample(range(len(cases)), count)
    return [cases[place] for place in sorted(places)]
