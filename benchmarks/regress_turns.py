"""What turns are worth: the noise floor of a check of 12 pairs, by three ways to compare the launches of a pair.

    python benchmarks/regress_turns.py [IN_TURNS ONE_BY_ONE]

Reads two records of `xbench regress baseline --layer wall --check step`, made on one machine: one as it is, one with
`in_turns = false` in xbench.toml (the committed ones unless others are named). Launches in turns are compared turn by
turn, as the gate does, and by the medians of whole launches, as if they had taken none. Real compute, real collectives.
"""

from __future__ import annotations

import sys
from pathlib import Path

from xbench.regress.baseline import read_baseline
from xbench.stats.regression import log_ratios, noise_floor
from xbench.units import format_percent

RESULTS = Path("results")
RECORDS = (RESULTS / "baselines" / "cpu-8ee24f49-84e29860" / "noise.json", RESULTS / "noise-one-by-one.json")
PAIRS = 12


def floor(ratios: list[float]) -> str:
    """Of checks of `PAIRS` pairs."""
    return f"{format_percent(noise_floor(log_ratios(ratios), PAIRS))} of {len(ratios)} pairs"


def main() -> None:
    """Print three floors."""
    in_turns, one_by_one = (
        read_baseline(path) for path in (map(Path, sys.argv[1:]) if len(sys.argv) == 3 else RECORDS)
    )
    for title, record in (("one after the other", one_by_one), ("in turns", in_turns)):
        whole = [
            head.value / base.value for pair in record.pairs for base, head in zip(pair.base, pair.head, strict=True)
        ]
        print(f"{title}, medians of launches: {floor(whole)}")
    by_turn = [ratio for pair in in_turns.pairs for one in pair.head if (ratio := pair.ratio(one.case)) is not None]
    print(f"in turns, turn by turn: {floor(by_turn)}")


if __name__ == "__main__":
    main()
