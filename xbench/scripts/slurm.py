"""A batch script for Slurm: one `srun`, whose tasks are the ranks. xbench reads srun's variables, without torchrun.

`--kill-on-bad-exit` ends the step when a rank fails; xbench's ranks also end by themselves, a little later.
"""

from __future__ import annotations

import shlex

from xbench.scripts import Launch, check, environment_comments, exports


def script(launch: Launch) -> str:
    """The text of the script."""
    options = {
        "job-name": launch.name,
        "nodes": str(launch.nodes),
        "ntasks-per-node": str(launch.ranks),
        "gpus-per-node": str(launch.gpus) if launch.gpus else None,
        "time": launch.time,
        "partition": launch.partition,
        "account": launch.account,
        "output": f"{launch.name}-%j.log",
    }
    lines = [
        "#!/usr/bin/env bash",
        *(f"#SBATCH --{name}={value}" for name, value in options.items() if value is not None),
        "#SBATCH --exclusive",
        f"# xbench {launch.command} on {launch.nodes} nodes {launch.ranks_each}, written by `xbench script`",
        f"# with {launch.versions}. Submit it with: sbatch FILE",
        *environment_comments(launch),
        "set -euo pipefail",
        'PYTHON="${PYTHON:-python3}"',
        'mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        'export MASTER_ADDR="${hosts[0]}"',
        "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))",
        *exports(launch),
        *check(launch),
        f'srun --kill-on-bad-exit=1 "$PYTHON" -m {shlex.join(launch.words)}',
    ]
    return "\n".join(lines) + "\n"
