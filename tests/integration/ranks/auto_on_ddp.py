"""A rank of a comparison in which DDP itself wins the trial of `auto`, whatever the machine says.

The command line starts it in the place of `xbench.rank.main`. Both run their real steps, in one round.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from xbench.planning.auto import Candidate
from xbench.rank.autotune import Trial
from xbench.rank.main import main

timed = Trial.run


def forced(trial: Trial, pair: Sequence[Candidate], rounds: int, steps: int) -> list[float]:
    favourite_s, _ = timed(trial, pair, 1, steps)
    return [favourite_s, 0.5 * favourite_s]


if __name__ == "__main__":
    Trial.run = forced  # type: ignore[method-assign]
    main(sys.argv[1:])
