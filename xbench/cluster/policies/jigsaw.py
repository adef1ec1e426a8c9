"""JigSaw: jobs run spatial partial backpropagation, and iterations of others are fitted into the gaps that it leaves.

After Kumar and others, *Doing More by Doing Less: How Structured Partial Backpropagation Improves Deep Learning
Clusters* (DistributedML 2021, arXiv 2111.10672).

**From the paper**, of which only the abstract was at hand: SPB controls how much each worker backpropagates, which
saves network, computation and memory; JigSaw is a scheduler that knows of it and schedules iterations; it improves the
efficiency of a large cluster by up to 28 %. **From first principles**, because no more was known: everything else here.

Jobs with the same number of GPUs may share them (`sharing`: who rides with whom). On w GPUs each has min(k, w) levels,
and `planning.spatial_turns` finds where each job's deep and shallow workers go, the turn order, and the exact time of a
round. A job keeps its `forward_share` of the computation (a third, where the trace does not say) on every worker; the
rest is backward pass, of which a worker of level i does i/k. Exposed communication is charged in full, and nothing is
saved of a job's memory, though partial backpropagation needs less of both: which part is not known.

A job that is alone runs as fast as ever, for its full-depth workers decide; one on a single GPU has no shallow worker
and shares with nobody. The gain is in **steps**: partial backpropagation changes the noise of gradients, and a step of
it is not worth one of full depth (`xbench converge` measures how much less). So it is useful GPU time, and not time to
accuracy.
"""

from __future__ import annotations

from functools import lru_cache

from xbench.cluster.jobs import Job
from xbench.cluster.policies.sharing import Kind, Sharing
from xbench.cluster.step_times import forward_share, step_times
from xbench.errors import SpecError
from xbench.planning.partial import MOST_LEVELS
from xbench.planning.spatial_turns import SpatialJob, pack

LONGEST_PATTERN = {2: 6, 3: 5, 4: 4}
"""Turns in a round, by jobs that share."""


class Jigsaw(Sharing):
    """See the module. Raises SpecError for k and jobs out of range, and as `Sharing` does."""

    name = "jigsaw"

    def __init__(
        self, k: int = 4, jobs: int = 2, order: str = "fifo-backfill", gain: float = 0.1, memory: int | None = None
    ) -> None:
        if not 2 <= k <= MOST_LEVELS:
            raise SpecError(f"{self.name}: k={k} levels are not 2 to {MOST_LEVELS}", hint="write k=4")
        if jobs not in LONGEST_PATTERN:
            raise SpecError(f"{self.name}: jobs={jobs} are not 2 to {max(LONGEST_PATTERN)}", hint="write jobs=2")
        super().__init__(order, gain, memory, most=jobs)
        self.k = k

    def times(self, job: Job) -> Kind:
        """Seconds of forward pass, backward pass and exposed communication."""
        found = step_times(job)
        assert found is not None  # `begin` asked for them
        forward_s = forward_share(job) * found.compute_s
        return (forward_s, found.compute_s - forward_s, found.exposed_s)

    def together(self, gpus: int, kinds: tuple[Kind, ...]) -> tuple[float, ...] | None:
        """By the best packing."""
        if gpus == 1:
            return None
        return packed_rates(gpus, min(self.k, gpus), *(SpatialJob(*kind) for kind in kinds))


@lru_cache(maxsize=1 << 16)
def packed_rates(gpus: int, levels: int, *jobs: SpatialJob) -> tuple[float, ...]:
    """Steps a second of each in the best packing, over those alone."""
    return pack(jobs, gpus, levels, LONGEST_PATTERN[len(jobs)]).rates
