"""A comparison on the nodes of a Ray cluster: a torchrun on each of them.

    NODES=2 RANKS=8 python ray_ranks.py compare resnet50 --modes ddp,auto

Rank 0 writes the record on its node. For clusters without GPUs, set GPUS=0.
"""

from __future__ import annotations

import os
import subprocess
import sys

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

NODES, RANKS = int(os.environ.get("NODES", "2")), int(os.environ.get("RANKS", "8"))
GPUS = int(os.environ.get("GPUS", RANKS))
PORT = 29500


@ray.remote
def address() -> str:
    """The address of the node that this runs on."""
    return ray.util.get_node_ip_address()


@ray.remote
def ranks_of_a_node(number: int, master: str, words: list[str]) -> int:
    """Run one node's ranks under torchrun, and return its exit code."""
    place = ["--nnodes", str(NODES), "--nproc-per-node", str(RANKS), "--node-rank", str(number)]
    meeting = ["--master-addr", master, "--master-port", str(PORT)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", *place, *meeting]
    return subprocess.run([*torchrun, "-m", "xbench", *words, "--fabric", "cluster"]).returncode


def main() -> int:
    """Place a bundle on each node, and run the ranks there."""
    ray.init()
    bundle = {"CPU": float(RANKS), **({"GPU": float(GPUS)} if GPUS else {})}
    group = placement_group([bundle] * NODES, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    on = [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number) for number in range(NODES)]
    master = ray.get(address.options(num_cpus=0, scheduling_strategy=on[0]).remote())
    asked = {"num_cpus": RANKS, "num_gpus": GPUS}
    codes = [
        ranks_of_a_node.options(scheduling_strategy=on[number], **asked).remote(number, master, sys.argv[1:])
        for number in range(NODES)
    ]
    return max(ray.get(codes))


if __name__ == "__main__":
    raise SystemExit(main())
