"""A share of the fault suite, spread over its families, and random draws: what `make faults` runs.

XBENCH_FAULTS_SEED (0 by default, a number of the commit under make) picks other ones, XBENCH_FAULTS_SHARE more or fewer
cases of the table. `make test-all` runs more of both. With XBENCH_FAULTS_OUTPUT=FILE it is every case and 200 draws,
whose results are kept in the file as they come; those that have held there are not run again.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from shares import ALL, SEED

from .case import Case
from .draws import as_case, draw
from .suite import all_cases, keep, kept, run, share

OUTPUT = Path(os.environ["XBENCH_FAULTS_OUTPUT"]) if "XBENCH_FAULTS_OUTPUT" in os.environ else None
SHARE = int(os.environ.get("XBENCH_FAULTS_SHARE", "6" if ALL else "3"))
DRAWS = 200 if OUTPUT else 10 if ALL else 3
SLOW = ("G-ten", "E-cpu-3s", "R-tune", "P-hang", "P-stop", "B-local-long-pause")
"""Left to the whole suite: each takes longer than a minute on two cores, or starts many ranks at once."""

TABLE = list(all_cases().values())
CHOSEN = TABLE if OUTPUT else share([one for one in TABLE if not one.name.startswith(SLOW)], SHARE, SEED)
HELD = {name for name, result in kept(OUTPUT).items() if not result["broken"]}
CASES = [one for one in (*CHOSEN, *map(as_case, draw(SEED, DRAWS))) if one.name not in HELD]


@pytest.mark.integration
@pytest.mark.timeout(0 if OUTPUT else 400)
@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_the_rules_hold(one: Case) -> None:
    result = run(one)
    if OUTPUT:
        keep(OUTPUT, SEED, result)
    if result.skipped:
        pytest.skip(result.skipped)
    assert result.broken == [], result.seen
