"""Launch scripts for engines that clusters have: the same comparison, as a file to run there.

    written(Launch(engine="slurm", command="compare", arguments=("resnet50",), nodes=2, ranks=1, ...))

A script carries the environment that it was written in: variables that change what is measured (`captured`) are set,
a comment names them, and those whose names are a secret's (`withheld`) are left out. Each node says so when its Python
or torch is another. Values are quoted for the shell, or as JSON strings in YAML. Nothing here runs anything, and
nothing imports torch.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata

from xbench.errors import unknown
from xbench.version import __version__

ENGINES = {
    "torchrun": "xbench.scripts.torchrun",
    "slurm": "xbench.scripts.slurm",
    "kubernetes": "xbench.scripts.kubernetes",
}
"""The module of each engine: its `script(launch)` gives the text."""

_CAPTURED = re.compile(r"(NCCL|TORCH_NCCL|GLOO|UCX|OMP|MKL)_[A-Z0-9_]+|CUDA_VISIBLE_DEVICES|XBENCH_(CACHE|HOST_TUNING)")
"""Of xbench's own variables the place of Horovod and the kernels, and host tuning; the others are of this process."""

_SECRET = re.compile(r"(?:(?<!_P)KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?=_|$)")
"""In a variable's name; UCX_IB_PKEY is a partition, and no secret."""


@dataclass(frozen=True)
class Launch:
    """What a script starts, and where."""

    engine: str
    command: str
    """Of xbench: compare or profile."""
    arguments: tuple[str, ...]
    nodes: int
    ranks: int
    """Ranks a node."""
    name: str = "xbench"
    time: str | None = None
    gpus: int = 0
    """GPUs a node."""
    partition: str | None = None
    account: str | None = None
    image: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    withheld: tuple[str, ...] = ()
    """Variables that were not taken, because their names are a secret's."""
    written_with: Mapping[str, str] = field(default_factory=dict)
    """Versions of xbench, Python and torch where the script was written."""

    @property
    def words(self) -> list[str]:
        """xbench's own words, the fabric among them."""
        return ["xbench", self.command, *self.arguments, "--fabric", "cluster"]

    @property
    def ranks_each(self) -> str:
        """'with 8 ranks each'."""
        return f"with {self.ranks} rank{'s' if self.ranks > 1 else ''} each"

    @property
    def versions(self) -> str:
        """'xbench 0.1.0, Python 3.11.7, torch 2.15.0'."""
        return ", ".join(f"{name} {version}" for name, version in self.written_with.items())


def written(launch: Launch) -> str:
    """The text of the script or manifest. Raises SpecError for an engine that is none."""
    if launch.engine not in ENGINES:
        raise unknown("engine", launch.engine, ENGINES)
    return str(importlib.import_module(ENGINES[launch.engine]).script(launch))


def captured(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that change what is measured, by name; none whose name is a secret's."""
    return {name: environ[name] for name in _asked(environ) if not _SECRET.search(name)}


def withheld(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Names of those that `captured` leaves out because they are a secret's."""
    return tuple(name for name in _asked(environ) if _SECRET.search(name))


def _asked(environ: Mapping[str, str]) -> list[str]:
    return [name for name in sorted(environ) if _CAPTURED.fullmatch(name)]


def taken(launch: Launch) -> list[str]:
    """Comment lines that name the variables of the shell in which the script was written: those set, those left out."""
    told = {"Set here as in the shell that wrote this": launch.environment, "Left out as secrets": launch.withheld}
    return [f"# {what}: {', '.join(names)}" for what, names in told.items() if names]


def versions() -> dict[str, str]:
    """What this script is written with; torch only where it is installed, and without importing it."""
    found = {"xbench": __version__, "Python": platform.python_version(), "torch": _version("torch")}
    return {name: version for name, version in found.items() if version is not None}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package).partition("+")[0]
    except metadata.PackageNotFoundError:
        return None


def exports(launch: Launch) -> list[str]:
    """Lines of shell that set the captured environment."""
    return [f"export {name}={shlex.quote(value)}" for name, value in launch.environment.items()]


def check(launch: Launch) -> list[str]:
    """Lines of shell that say when this node's Python or torch is another than where the script was written."""
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
    """The shell command of one node's torchrun; the last three are words of shell."""
    places = f"--nnodes {launch.nodes} --nproc-per-node {launch.ranks} --node-rank {node_rank}"
    meeting = f"--master-addr {address} --master-port {port}"
    return f'"$PYTHON" -m torch.distributed.run {places} {meeting} -m {shlex.join(launch.words)}'
