"""Ranks that a launcher (torchrun, srun with torchrun's variables) started around us: nothing is started here.

The environment says who we are, in torch.distributed's own variables: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
MASTER_PORT, all five; LOCAL_WORLD_SIZE, where the launcher sets it, tells hosts and ranks a host apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xbench.errors import SpecError
from xbench.fabrics.fabric import Fabric
from xbench.spec import FabricSpec, known_options

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class ClusterRank:
    """This process's place among ranks that were started around us."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_address: str
    master_port: int

    @property
    def hosts(self) -> int:
        """Hosts when every host has as many ranks as ours, else one a rank."""
        even = self.world_size % self.local_world_size == 0
        return self.world_size // self.local_world_size if even else self.world_size


def cluster_rank(environ: Mapping[str, str]) -> ClusterRank:
    """Our rank from the environment. Raises SpecError naming the variable that is missing or wrong."""
    missing = [name for name in VARIABLES if not environ.get(name)]
    if missing:
        what = "variables" if len(missing) > 1 else "variable"
        raise SpecError(
            f"the cluster fabric lacks the environment {what} {', '.join(missing)}",
            hint="start it with torchrun: torchrun --nproc-per-node 8 -m xbench compare --fabric cluster",
        )
    rank = _whole(environ, "RANK", 0, None)
    world_size = _whole(environ, "WORLD_SIZE", 1, None)
    if rank >= world_size:
        raise SpecError(f"RANK={rank} is not below WORLD_SIZE={world_size}")
    return ClusterRank(
        rank=rank,
        world_size=world_size,
        local_rank=_whole(environ, "LOCAL_RANK", 0, None),
        local_world_size=_whole(environ, "LOCAL_WORLD_SIZE", 1, world_size) if environ.get("LOCAL_WORLD_SIZE") else 1,
        master_address=environ["MASTER_ADDR"],
        master_port=_whole(environ, "MASTER_PORT", 1, 65535),
    )


def _whole(environ: Mapping[str, str], name: str, low: int, high: int | None) -> int:
    text = environ[name]
    span = f"{low} to {high}" if high is not None else f"{low} or more"
    if not text.isascii() or not text.isdigit() or int(text) < low or (high is not None and int(text) > high):
        raise SpecError(f"the environment variable {name}={text!r} is not a whole number of {span}")
    return int(text)


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
