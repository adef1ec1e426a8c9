"""Ranks that an engine (torchrun, srun, mpirun, horovodrun) started. This fabric starts nothing itself.

The environment tells each process its rank (`xbench.fabrics.engines`) and the address of rank 0
(`xbench.fabrics.rendezvous`). Two jobs that share the devices divide the ranks: each gets half of every host's. The
neighbours 2i and 2i + 1 on a host share device i.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from xbench.errors import SpecError
from xbench.fabrics.engines import HINT, ClusterRank, ranks_around
from xbench.fabrics.fabric import Fabric
from xbench.spec import FabricSpec, known_options


def cluster_rank(environ: Mapping[str, str]) -> ClusterRank:
    """This process's rank, from the environment. Raises SpecError without one, or for an incomplete one."""
    process = ranks_around(environ)
    if process is None:
        raise SpecError("the cluster fabric needs ranks that an engine started, and there are none", hint=HINT)
    return process


def divided(spec: FabricSpec, jobs: int, environ: Mapping[str, str] = os.environ) -> FabricSpec:
    """The cluster as each of `jobs` jobs sees it: its share of every host's ranks.

    Raises SpecError if this host's ranks cannot be divided. Other hosts are checked when the ranks meet.
    """
    if jobs == 1:
        return spec
    process = cluster_rank(environ)
    if process.world_size % jobs or (process.counted and process.local_world_size % jobs):
        started = f"{process.local_world_size} on this host" if process.counted else f"{process.world_size} in all"
        raise SpecError(undivided(started, jobs, process.engine), hint=_more_ranks(process.engine))
    if spec.ranks % jobs == 0:
        return spec.model_copy(update={"ranks": spec.ranks // jobs})
    return spec.model_copy(update={"hosts": process.world_size // jobs, "ranks": 1})


def undivided(ranks: str, jobs: int, engine: str) -> str:
    """Error message for ranks that two jobs cannot share."""
    return (
        f"{jobs} jobs share the devices, so each host needs a number of ranks that {jobs} divides, one a job and "
        f"device, and {engine} started {ranks}"
    )


def _more_ranks(engine: str) -> str:
    how = {
        "torchrun": "--nproc-per-node 4",
        "srun": "--ntasks-per-node 4",
        "mpirun": "-np 4 on one host",
        "mpiexec": "-n 4 on one host",
    }
    return f"{how.get(engine, '4 ranks')} for two devices on a host, or name single-job modes and one workload"


class ClusterFabric(Fabric):
    """Ranks that an engine started. It has no host slots, because it launches nothing."""

    @classmethod
    def parse(cls, text: str, options: dict[str, str]) -> FabricSpec:
        """`cluster`, without options. Raises SpecError."""
        known_options(text, options, ())
        return FabricSpec(name="cluster")

    @staticmethod
    def resolve(environ: Mapping[str, str]) -> FabricSpec:
        """The spec with hosts and ranks from the environment. Raises SpecError."""
        process = cluster_rank(environ)
        return FabricSpec(name="cluster", hosts=process.hosts, ranks=process.world_size // process.hosts)
