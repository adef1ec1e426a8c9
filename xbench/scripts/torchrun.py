"""A shell script to run by hand, or by ssh, on every node, with one torchrun each."""

from __future__ import annotations

from xbench.scripts import Launch, check, environment_comments, exports, one_torchrun


def script(launch: Launch) -> str:
    """The text of the script."""
    run = one_torchrun(launch, '"$NODE_RANK"', '"$MASTER_ADDR"', '"$MASTER_PORT"')
    lines = [
        "#!/usr/bin/env bash",
        f"# xbench {launch.command} on {launch.nodes} nodes {launch.ranks_each}, written by `xbench script`",
        f"# with {launch.versions}.",
        *environment_comments(launch),
        "#",
        "# Run it on every node at about the same time, on the first with NODE_RANK=0, on the next with NODE_RANK=1, …",
        "#     MASTER_ADDR=node0 NODE_RANK=0 bash FILE",
        "# The record is written on the first node, which speaks for all.",
        "set -euo pipefail",
        'PYTHON="${PYTHON:-python3}"',
        'NODE_RANK="${NODE_RANK:?the number of this node, from 0}"',
        'MASTER_ADDR="${MASTER_ADDR:?the address of node 0, as every node reaches it}"',
        'MASTER_PORT="${MASTER_PORT:-29500}"',
        *exports(launch),
        *check(launch),
        f"exec {run}",
    ]
    return "\n".join(lines) + "\n"
