"""The files under examples/launch: what Slurm and Kubernetes read of them, and the command that they run."""

from __future__ import annotations

import itertools
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

LAUNCH = Path(__file__).parents[3] / "examples" / "launch"
WORDS = ["compare", "resnet50", "--modes", "ddp,auto"]


@pytest.mark.parametrize("path", sorted(LAUNCH.glob("*.sh")), ids=lambda path: path.name)
def test_a_script_is_one_of_bash(path: Path) -> None:
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_slurm_starts_a_rank_for_each_task(tmp_path: Path) -> None:
    lines = (LAUNCH / "slurm.sh").read_text(encoding="utf-8").splitlines()
    first_command = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    assert {"#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=8"} <= set(lines[:first_command])
    assert not any(line.startswith("#SBATCH") for line in lines[first_command:])  # Slurm would not read them
    for name, body in {"scontrol": "echo n1; echo n2", "srun": 'echo "$MASTER_ADDR $MASTER_PORT $*"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    place = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "123456", "SLURM_JOB_NODELIST": "n"}
    done = subprocess.run(["bash", str(LAUNCH / "slurm.sh"), *WORDS], text=True, capture_output=True, env=place)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"n1 23456 --kill-on-bad-exit=1 python3 -m xbench {' '.join(WORDS)} --fabric cluster\n"


def test_kubernetes_gets_a_service_and_an_indexed_job() -> None:
    service, job = yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text(encoding="utf-8"))
    name = service["metadata"]["name"]
    assert (service["kind"], service["spec"]["clusterIP"], service["spec"]["selector"]) == (
        "Service", "None", {"job-name": name},
    )  # fmt: skip
    assert (job["kind"], job["spec"]["completionMode"], job["spec"]["backoffLimit"]) == ("Job", "Indexed", 0)
    pod = job["spec"]["template"]["spec"]
    assert (pod["subdomain"], pod["restartPolicy"]) == (name, "Never")
    (container,) = pod["containers"]
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    words = shlex.split(container["command"][2])
    given = dict(itertools.pairwise(words))
    assert int(given["--nnodes"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert int(given["--nproc-per-node"]) == container["resources"]["limits"]["nvidia.com/gpu"]
    assert (given["--node-rank"], given["--master-addr"]) == ("$JOB_COMPLETION_INDEX", f"{name}-0.{name}")
    assert words[words.index("xbench") + 1 :] == [*WORDS, "--fabric", "cluster", "--json", "-"]
