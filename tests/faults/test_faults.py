"""A share of the fault suite, spread over its families, and random draws. All of it: python -m tests.faults.

XBENCH_FAULTS_SEED (0 by default, a number of the commit under make) picks other ones, XBENCH_FAULTS_SHARE more or fewer
cases of the table. `make test-all` runs more of both.
"""

from __future__ import annotations

import os

import pytest
from shares import ALL, SEED

from .case import Case
from .draws import as_case, draw
from .suite import all_cases, missing, run, share

SHARE = int(os.environ.get("XBENCH_FAULTS_SHARE", "6" if ALL else "3"))
DRAWS = 10 if ALL else 3
SLOW = ("G-ten", "E-cpu-3s", "R-tune", "P-hang", "P-stop", "B-local-long-pause")
"""Left to the whole suite: each takes longer than a minute on two cores, or starts many ranks at once."""

FAST = [one for one in all_cases().values() if not one.name.startswith(SLOW)]
CASES = [*share(FAST, SHARE, SEED), *(as_case(one) for one in draw(SEED, DRAWS))]


@pytest.mark.integration
@pytest.mark.timeout(400)
@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_the_rules_hold(one: Case) -> None:
    if (need := missing(one)) is not None:
        pytest.skip(f"needs {need}")
    print(f"again: python -m tests.faults --only '{one.name}' --draws {DRAWS} --seed {SEED}")
    result = run(one)
    assert result.broken == [], result.seen
