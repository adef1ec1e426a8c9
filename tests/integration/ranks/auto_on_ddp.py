"""A rank of a comparison in which DDP itself wins the trial of `auto`, whatever the machine says.

The command line starts it in the place of `xbench.rank.main`. All candidates run their real steps, in one round.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from xbench.planning.auto import Candidate
from xbench.rank.autotune import CandidateTiming, Trial
from xbench.rank.main import main

timed = Trial.run


def forced(trial: Trial, shortlist: Sequence[Candidate], rounds: int, steps: int) -> list[CandidateTiming]:
    found = timed(trial, shortlist, 1, steps)
    shares = [0.5 if candidate.carrier == "ddp" else 1.0 for candidate in shortlist]
    return [replace(one, step_s=found[0].step_s * part, in_final=True) for one, part in zip(found, shares, strict=True)]


if __name__ == "__main__":
    Trial.run = forced  # type: ignore[method-assign]
    main(sys.argv[1:])
