"""JigSaw: jobs run spatial partial backpropagation, and iterations of other jobs fill the gaps that it leaves.

After Kumar and others, *Doing More by Doing Less: How Structured Partial Backpropagation Improves Deep Learning
Clusters* (DistributedML 2021, arXiv 2111.10672).

**From the paper**, of which only the abstract was available: SPB controls how much each worker backpropagates, which
saves network, computation and memory. JigSaw is a scheduler that uses this and schedules iterations. It improves the
efficiency of a large cluster by up to 28 %. **From first principles**, without a source: everything else here.

Jobs with the same number of GPUs may share them (`sharing`). On w GPUs each has min(k, w) levels. `planning.turns`
places each job's deep and shallow workers, and finds the turn order and the exact time of a round. The forward pass
takes a job's `forward_share` of the computation (by default a third) on every worker. The rest is the backward pass, of
which a worker of level i does i/k. Exposed communication and memory are charged in full, although partial
backpropagation needs less of both: the saved part is unknown.

A job that is alone runs at full speed, because its full-depth workers decide. A job on a single GPU has no shallow
worker and shares with no job. The gain is in **steps**: partial backpropagation changes the noise of gradients, and one
of its steps is worth less than one of full depth (`xbench converge` measures how much). So it is a gain of useful GPU
time, and not of time to accuracy.
"""

from __future__ import annotations

from functools import lru_cache

from xbench.cluster.jobs import Job
from xbench.cluster.policies.sharing import Kind, Sharing
from xbench.cluster.speeds import forward_share, step_times
from xbench.errors import SpecError
from xbench.planning.partial import MAX_LEVELS
from xbench.planning.turns import SpatialJob, pack

MAX_PATTERN = 6
"""Largest number of turns in a round."""


class Jigsaw(Sharing):
    """The policy. Raises SpecError for k out of range, and as `Sharing` does."""

    name = "jigsaw"

    def __init__(self, k: int = 4, order: str = "fifo-backfill", gain: float = 0.1, memory: int | None = None) -> None:
        if not 2 <= k <= MAX_LEVELS:
            raise SpecError(f"{self.name}: k={k} levels are not 2 to {MAX_LEVELS}", hint="write k=4")
        super().__init__(order, gain, memory)
        self.k = k

    def times(self, job: Job) -> Kind:
        """Time [s] of forward pass, backward pass and exposed communication."""
        step = step_times(job)
        assert step is not None  # checked by `begin`
        forward_s = forward_share(job) * step.compute_s
        return (forward_s, step.compute_s - forward_s, step.exposed_s)

    def together(self, gpus: int, kinds: tuple[Kind, ...]) -> tuple[float, ...] | None:
        """Rates in the best packing."""
        if gpus == 1:
            return None
        return packed_rates(gpus, min(self.k, gpus), *(SpatialJob(*kind) for kind in kinds))


@lru_cache(maxsize=1 << 16)
def packed_rates(gpus: int, levels: int, *jobs: SpatialJob) -> tuple[float, ...]:
    """Steps a second of each job in the best packing, over those alone."""
    return pack(jobs, gpus, levels, MAX_PATTERN).rates
