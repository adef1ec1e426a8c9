"""Launch scripts for the engines of clusters: a comparison as a file to run there.

    written(Launch(engine="slurm", command="compare", arguments=("resnet50",), nodes=2, ranks=1, ...))

A script carries the environment in which it was written. Variables that affect a measurement (`captured`) are set, a
comment names them, and those with the name of a secret (`withheld`) are left out. Each node reports if its Python or
torch is another. Values are quoted for the shell, or as JSON strings in YAML. Nothing here runs anything, and nothing
imports torch.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from xbench.environment import version_of
from xbench.errors import unknown
from xbench.version import __version__

ENGINES = {
    "torchrun": "xbench.scripts.torchrun",
    "slurm": "xbench.scripts.slurm",
    "kubernetes": "xbench.scripts.kubernetes",
}
"""Module of each engine; its `script(launch)` returns the text."""

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


def written(launch: Launch) -> str:
    """The text of the script or manifest. Raises SpecError for an unknown engine."""
    if launch.engine not in ENGINES:
        raise unknown("engine", launch.engine, ENGINES)
    return str(importlib.import_module(ENGINES[launch.engine]).script(launch))


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
