"""Ranks that an engine (torchrun, srun, mpirun, horovodrun) started around us: nothing is started here.

The environment says who we are: see `xbench.fabrics.engines`; where rank 0 is met: see `xbench.fabrics.meeting`. Two
jobs that share the devices divide the ranks between them, half of each host's for each: neighbours on a host, ranks 2i
and 2i + 1 of it, share device i.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from xbench.errors import SpecError
from xbench.fabrics.engines import HINT, ClusterRank, ranks_around
from xbench.fabrics.fabric import Fabric
from xbench.spec import FabricSpec, known_options


def cluster_rank(environ: Mapping[str, str]) -> ClusterRank:
    """Our rank from the environment. Raises SpecError where there is none, or half of one."""
    ours = ranks_around(environ)
    if ours is None:
        raise SpecError("the cluster fabric needs ranks, and nobody started any around xbench", hint=HINT)
    return ours


def divided(spec: FabricSpec, jobs: int, environ: Mapping[str, str] = os.environ) -> FabricSpec:
    """The cluster as each of `jobs` jobs sees it: its share of every host's ranks.

    Raises SpecError when a host's ranks cannot be divided. Hosts other than ours are looked at when the ranks meet.
    """
    if jobs == 1:
        return spec
    ours = cluster_rank(environ)
    if ours.world_size % jobs or (ours.counted and ours.local_world_size % jobs):
        here = f"{ours.local_world_size} on this host" if ours.counted else f"{ours.world_size} in all"
        raise SpecError(undivided(here, jobs, ours.engine), hint=_more_ranks(ours.engine))
    if spec.ranks % jobs == 0:
        return spec.model_copy(update={"ranks": spec.ranks // jobs})
    return spec.model_copy(update={"hosts": ours.world_size // jobs, "ranks": 1})


def undivided(here: str, jobs: int, engine: str) -> str:
    """The sentence for ranks that two jobs cannot share."""
    return (
        f"{jobs} jobs share the devices, so each host needs a number of ranks that {jobs} divides, one a job and "
        f"device, and {engine} started {here}"
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
    """The ranks around us. It has no host slots: there is nothing to launch."""

    @classmethod
    def parse(cls, text: str, options: dict[str, str]) -> FabricSpec:
        """`cluster`, without options. Raises SpecError."""
        known_options(text, options, ())
        return FabricSpec(name="cluster")

    @staticmethod
    def resolve(environ: Mapping[str, str]) -> FabricSpec:
        """The spec with hosts and ranks as the environment says. Raises SpecError."""
        ours = cluster_rank(environ)
        return FabricSpec(name="cluster", hosts=ours.hosts, ranks=ours.world_size // ours.hosts)
