"""Launch scripts for the engines of clusters: a comparison as a file to run there.

    written(Launch(engine="slurm", command="compare", arguments=("resnet50",), nodes=2, ranks=1, ...))

A script carries the environment in which it was written. Variables that affect a measurement (`captured`) are set, a
comment names them, and those with the name of a secret (`withheld`) are left out. Each node reports if its Python or
torch is another. Values are quoted for the shell, or as JSON strings in YAML. Nothing here runs anything, and nothing
imports torch.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from xbench.environment import version_of
from xbench.errors import unknown
from xbench.version import __version__

KUBERNETES_PORT = 29500

_CAPTURED = re.compile(r"(NCCL|TORCH_NCCL|GLOO|UCX|OMP|MKL)_[A-Z0-9_]+|CUDA_VISIBLE_DEVICES|XBENCH_(CACHE|HOST_TUNING)")
"""Captured variables.

Of xbench's own: the cache of Horovod and the kernels, and host tuning. Others belong to a process or a test.
"""

_SECRET = re.compile(r"(?:(?<!_P)KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?=_|$)")
"""Names of secrets. UCX_IB_PKEY is a partition, and not a secret."""


@dataclass(frozen=True)
class Launch:
    """Contents and target of a script."""

    engine: str
    command: str
    """Command of xbench: compare or profile."""
    arguments: tuple[str, ...]
    nodes: int
    ranks: int
    """Ranks per node."""
    name: str = "xbench"
    time: str | None = None
    gpus: int = 0
    """GPUs per node."""
    partition: str | None = None
    account: str | None = None
    image: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    withheld: tuple[str, ...] = ()
    """Variables that are left out, because their names are those of secrets."""
    written_with: Mapping[str, str] = field(default_factory=dict)
    """Versions of xbench, Python and torch where the script was written."""

    @property
    def words(self) -> list[str]:
        """xbench's own arguments, including the fabric."""
        return ["xbench", self.command, *self.arguments, "--fabric", "cluster"]

    @property
    def ranks_each(self) -> str:
        """Ranks per node in words: 'with 8 ranks each'."""
        return f"with {self.ranks} rank{'s' if self.ranks > 1 else ''} each"

    @property
    def versions(self) -> str:
        """Versions in words: 'xbench 0.1.0, Python 3.11.7, torch 2.15.0'."""
        return ", ".join(f"{name} {version}" for name, version in self.written_with.items())


def captured(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that affect a measurement, by name, without secrets."""
    return {name: environ[name] for name in _captured_names(environ) if not _SECRET.search(name)}


def withheld(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Names that `captured` leaves out because they are those of secrets."""
    return tuple(name for name in _captured_names(environ) if _SECRET.search(name))


def _captured_names(environ: Mapping[str, str]) -> list[str]:
    return [name for name in sorted(environ) if _CAPTURED.fullmatch(name)]


def environment_comments(launch: Launch) -> list[str]:
    """Comment lines that name the variables set from the shell in which the script was written, and those left out."""
    comments = {"Set here as in the shell that wrote this": launch.environment, "Left out as secrets": launch.withheld}
    return [f"# {what}: {', '.join(names)}" for what, names in comments.items() if names]


def versions() -> dict[str, str]:
    """Versions of this xbench, Python and torch. torch is not imported, and missing if it is not installed."""
    torch = version_of("torch")
    installed = {"xbench": __version__, "Python": platform.python_version()}
    return installed if torch is None else {**installed, "torch": torch.partition("+")[0]}


def exports(launch: Launch) -> list[str]:
    """Shell lines that set the captured environment."""
    return [f"export {name}={shlex.quote(value)}" for name, value in launch.environment.items()]


def check(launch: Launch) -> list[str]:
    """Shell lines that report if this node's Python or torch is another than where the script was written."""
    python, torch = launch.written_with.get("Python"), launch.written_with.get("torch")
    if python is None or torch is None:
        return []
    ask = "import platform, torch; print(platform.python_version(), torch.__version__.partition('+')[0])"
    return [
        f'have=$("$PYTHON" -c {shlex.quote(ask)})',
        f"want={shlex.quote(f'{python} {torch}')}",
        'if [ "$have" != "$want" ]; then',
        '  echo "note: this was written with Python and torch $want, and $(hostname) has $have" >&2',
        "fi",
    ]


def one_torchrun(launch: Launch, node_rank: str, address: str, port: str) -> str:
    """The shell command of one node's torchrun; the last three arguments are words of shell."""
    placement = f"--nnodes {launch.nodes} --nproc-per-node {launch.ranks} --node-rank {node_rank}"
    rendezvous = f"--master-addr {address} --master-port {port}"
    return f'"$PYTHON" -m torch.distributed.run {placement} {rendezvous} -m {shlex.join(launch.words)}'


def torchrun(launch: Launch) -> list[str]:
    """Lines of a shell script to run by hand, or by ssh, on every node, with one torchrun each."""
    run = one_torchrun(launch, '"$NODE_RANK"', '"$MASTER_ADDR"', '"$MASTER_PORT"')
    return [
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


def slurm(launch: Launch) -> list[str]:
    """Lines of a batch script: one `srun`, whose tasks are the ranks. xbench reads its variables, without torchrun.

    `--kill-on-bad-exit` ends the step when a rank fails; xbench's ranks also end by themselves, a little later.
    """
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
    return [
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


def kubernetes(launch: Launch) -> list[str]:
    """Lines of a manifest: an Indexed Job with a pod per node, and a headless Service that names the pods.

    It needs no operator. Pod i of Job NAME is reached as NAME-i.NAME, so pod 0 is torchrun's rendezvous; a pod's number
    is JOB_COMPLETION_INDEX. A pod's disk is lost with the pod, so the record goes to pod 0's standard output, alone:
    `kubectl logs` shows it.
    """
    name = launch.name
    return [
        f"# xbench {launch.command} on {launch.nodes} pods {launch.ranks_each}, written by `xbench script`",
        f"# with {launch.versions}.",
        *environment_comments(launch),
        "#     kubectl apply -f FILE",
        f"#     kubectl logs -f -l job-name={name},batch.kubernetes.io/job-completion-index=0",
        *_service(name),
        "---",
        *_job(launch),
    ]


def _service(name: str) -> list[str]:
    return [
        "apiVersion: v1",
        "kind: Service",
        "metadata:",
        f"  name: {_text(name)}",
        "spec:",
        '  clusterIP: "None"',
        "  publishNotReadyAddresses: true",
        "  selector:",
        f"    job-name: {_text(name)}",
        "  ports:",
        "    - name: meeting",
        f"      port: {KUBERNETES_PORT}",
    ]


def _job(launch: Launch) -> list[str]:
    """The Indexed Job of one pod a node."""
    name = launch.name
    run = one_torchrun(launch, '"$JOB_COMPLETION_INDEX"', f"{name}-0.{name}", str(KUBERNETES_PORT))
    shell = ["set -eu", 'PYTHON="${PYTHON:-python3}"', *check(launch), f"exec {run}"]
    pairs = [{"name": key, "value": value} for key, value in launch.environment.items()]
    environment = ["          env:", *(f"            - {_text(pair)}" for pair in pairs)] if pairs else []
    limit = f"              nvidia.com/gpu: {launch.gpus}"
    gpus = ["          resources:", "            limits:", limit] if launch.gpus else []
    return [
        "apiVersion: batch/v1",
        "kind: Job",
        "metadata:",
        f"  name: {_text(name)}",
        "spec:",
        "  completionMode: Indexed",
        f"  completions: {launch.nodes}",
        f"  parallelism: {launch.nodes}",
        "  backoffLimit: 0",
        "  template:",
        "    spec:",
        f"      subdomain: {_text(name)}",
        "      restartPolicy: Never",
        "      affinity:",
        "        podAntiAffinity:",
        "          requiredDuringSchedulingIgnoredDuringExecution:",
        "            - topologyKey: kubernetes.io/hostname",
        "              labelSelector:",
        "                matchLabels:",
        f"                  job-name: {_text(name)}",
        "      containers:",
        "        - name: xbench",
        f"          image: {_text(launch.image or '')}",
        f"          command: {_text(['bash', '-c', chr(10).join(shell)])}",
        *environment,
        *gpus,
        "          volumeMounts:",
        "            - name: shm",
        "              mountPath: /dev/shm",
        "      volumes:",
        "        - name: shm",
        "          emptyDir:",
        "            medium: Memory",
    ]


def _text(value: object) -> str:
    """A value in YAML: JSON is YAML, and needs no further quoting."""
    return json.dumps(value)


ENGINES: dict[str, Callable[[Launch], list[str]]] = {"torchrun": torchrun, "slurm": slurm, "kubernetes": kubernetes}
"""The lines of each engine's script."""


def written(launch: Launch) -> str:
    """The text of the script or manifest. Raises SpecError for an unknown engine."""
    if launch.engine not in ENGINES:
        raise unknown("engine", launch.engine, ENGINES)
    return "\n".join(ENGINES[launch.engine](launch)) + "\n"
