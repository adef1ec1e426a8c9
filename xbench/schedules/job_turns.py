"""Jobs in turns in one process: one of them computes while the gradients of the others travel.

    A: fwd 1, bwd 1   B: fwd 1, bwd 1   A: update 1, fwd 2, bwd 2   B: update 1, fwd 2, bwd 2   ...
              └── gradients A 1 ──┘               └─── gradients B 1 ───┘

A turn begins with the update of the job's last step. The wait for its gradients is put off until then, and happens
inside the update. The collectives of a turn start during its backward pass.

Each job has a process group of its own. All ranks walk the same pattern in one thread, so the collectives of all groups
are launched in the same order everywhere. On a GPU all turns are work of one stream and one context, so NCCL's kernels
and a job's kernels run at the same time. An error in one turn ends the block for all jobs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass


@dataclass(frozen=True)
class JobTurns:
    """One job's part of a block: its number of turns, and the work of a turn.

    - `update` waits for the gradients of the last step and runs the optimizer.
    - `forward_backward` starts the collectives during the backward pass and leaves them in flight.
    - `mark` records a step boundary. It is called after each turn.
    - `hold` is entered around a turn.
    """

    turns: int
    update: Callable[[], None]
    forward_backward: Callable[[], None]
    mark: Callable[[], None]
    hold: Callable[[], AbstractContextManager[None]] = nullcontext


def turn_order(pattern: Sequence[int], turns: Sequence[int]) -> Iterator[int]:
    """Yield the job of each turn: the pattern, cyclically, without jobs that have taken all their `turns`.

    Raises ValueError if a job has turns to take and is not in the pattern.
    """
    left = list(turns)
    outside = [job for job, count in enumerate(left) if count and job not in pattern]
    if outside:
        raise ValueError(f"job {outside[0]} is not in the pattern {tuple(pattern)}")
    for job in itertools.cycle(pattern):
        if not any(left):
            return
        if left[job]:
            left[job] -= 1
            yield job


def steps_in_turns(jobs: Sequence[JobTurns], pattern: Sequence[int]) -> None:
    """Train one block of all jobs, one step per turn.

    The last updates follow the last turn and the last mark, in the order of the jobs. Every model then has the state of
    plain training. Raises ValueError as `turn_order` does. An error of a callable passes through.
    """
    started: set[int] = set()
    for number in turn_order(pattern, [job.turns for job in jobs]):
        job = jobs[number]
        with job.hold():
            if number in started:
                job.update()
            job.forward_backward()
        started.add(number)
        job.mark()
    for number in sorted(started):
        jobs[number].update()
