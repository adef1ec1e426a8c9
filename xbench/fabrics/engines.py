"""Which engine started ranks around us, and which of them we are: from the environment alone.

Every engine tells a rank its place in variables of its own; ENGINES is the table. A rank may see the variables of
several. Engines nest, so who is inside whom decides:

- torchrun's own agent (TORCHELASTIC_RUN_ID) is always the innermost: it is what srun, mpirun or Kubernetes started.
- srun is always the outermost: mpirun and horovodrun start their ranks through it inside an allocation.
- All others, and RANK and WORLD_SIZE that a script set by hand, must say the same rank and world size.

A set of which a part is missing is an error, unless what is there agrees with another engine's whole set: Slurm's PMI
plug-ins set PMI_RANK and PMI_SIZE and no more.

Slurm sets SLURM_PROCID in the shell of a batch script and of an allocation as well, where no ranks were started. Ranks
are in a *step*: SLURM_STEP_ID is a number below 0xfffffff0, above which lie the batch script's, the external and the
interactive step's (slurm.h). `srun --pty bash` is a step of one task; a step of one is taken for ranks only when the
fabric is asked for by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from xbench.errors import SpecError

FIRST_SPECIAL_STEP = 0xFFFFFFF0
HINT = "torchrun --nproc-per-node 8 -m xbench compare --fabric cluster; srun, mpirun and horovodrun do, too"


@dataclass(frozen=True)
class Engine:
    """The names of the variables by which an engine tells a rank its place."""

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str | None = None
    host: str | None = None
    """The number of the host, where the engine gives one."""
    also: tuple[str, ...] = ()
    """What else must be there."""

    @property
    def needed(self) -> tuple[str, ...]:
        """Without which a set is half a set."""
        return (self.rank, self.size, self.local_rank, *self.also)


TORCHRUN = Engine(
    "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", ("MASTER_ADDR", "MASTER_PORT")
)
HOROVODRUN = Engine(
    "horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK"
)
OPEN_MPI = Engine(
    "mpirun",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
HYDRA = Engine("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
SRUN = Engine("srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", host="SLURM_NODEID")

TORCHRUNS_OWN = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "GROUP_RANK")
"""Variables that torchrun sets beside those that scripts set by hand."""

ENGINES = (TORCHRUN, HOROVODRUN, OPEN_MPI, HYDRA, SRUN)
"""Innermost first, where they nest."""


@dataclass(frozen=True)
class ClusterRank:
    """This process's place among ranks that were started around us."""

    engine: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    """1 where the engine does not say."""
    host: int | None = None
    """The host's number, where the engine gives it."""
    counted: bool = True
    """Whether `local_world_size` is known."""
    bare: bool = False
    """True if RANK and WORLD_SIZE alone say so, without torchrun's other variables: an old run may have left them."""

    @property
    def source(self) -> str:
        """Start of a sentence that names the evidence for ranks around us."""
        if self.bare:
            return f"RANK={self.rank} and WORLD_SIZE={self.world_size} are set in this shell"
        return f"{self.engine} started {self.world_size} ranks around us"

    @property
    def remedy(self) -> str | None:
        """Remedy where the other ranks do not come; None where an engine did start them."""
        return f"if nobody started them, unset {' '.join(TORCHRUN.needed)}" if self.bare else None

    @property
    def hosts(self) -> int:
        """Hosts when every host has as many ranks as ours, else one a rank."""
        even = self.world_size % self.local_world_size == 0
        return self.world_size // self.local_world_size if even else self.world_size


def ranks_around(environ: Mapping[str, str]) -> ClusterRank | None:
    """Our place among the ranks around us, or None where nobody started any.

    Raises SpecError, one sentence, for half a set of variables, for two engines that contradict each other, and for a
    variable that is no number.
    """
    claimed = [engine for engine in ENGINES if claims(engine, environ)]
    whole = [engine for engine in claimed if not missing(engine, environ)]
    if not claimed:
        return None
    if not whole:
        raise _half(claimed[0], environ)
    inner = whole[0]
    ours = place(inner, environ)
    if inner is TORCHRUN and environ.get("TORCHELASTIC_RUN_ID"):
        return ours
    for other in claimed:
        if other is inner or (other is SRUN and inner is not TORCHRUN):
            continue
        said = {name: environ[name] for name in (other.rank, other.size) if environ.get(name)}
        wanted = {other.rank: str(ours.rank), other.size: str(ours.world_size)}
        if any(value != wanted[name] for name, value in said.items()):
            if other not in whole:
                raise _half(other, environ)
            raise SpecError(
                f"the variables of two engines contradict each other: {inner.name}'s say rank {ours.rank} of "
                f"{ours.world_size} ({inner.rank}, {inner.size}), and {other.name}'s say rank {environ[other.rank]} of "
                f"{environ[other.size]} ({other.rank}, {other.size})",
                hint=f"unset {inner.rank} {inner.size}, or {other.rank} {other.size}: whichever is not of this run",
            )
    return ours


def claims(engine: Engine, environ: Mapping[str, str]) -> bool:
    """Whether an engine's rank or world size is in the environment, and means ranks."""
    if engine is SRUN:
        return in_step(environ)
    return bool(environ.get(engine.rank) or environ.get(engine.size))


def in_step(environ: Mapping[str, str]) -> bool:
    """Whether we are inside a step of `srun`, not merely in an allocation, a batch script, or an interactive shell."""
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or ""
    return step.isascii() and step.isdigit() and int(step) < FIRST_SPECIAL_STEP


def missing(engine: Engine, environ: Mapping[str, str]) -> list[str]:
    """What is not there of the variables that an engine always sets."""
    return [name for name in engine.needed if not environ.get(name)]


def place(engine: Engine, environ: Mapping[str, str]) -> ClusterRank:
    """Our place as an engine's whole set says it. Raises SpecError naming the variable that is wrong."""
    rank = whole_number(environ, engine.rank, 0, None)
    world_size = whole_number(environ, engine.size, 1, None)
    if rank >= world_size:
        raise SpecError(f"{engine.rank}={rank} is not below {engine.size}={world_size}")
    local_rank = whole_number(environ, engine.local_rank, 0, None)
    if "MASTER_PORT" in engine.also:
        whole_number(environ, "MASTER_PORT", 1, 65535)
    host = whole_number(environ, engine.host, 0, None) if engine.host and environ.get(engine.host) else None
    local: int | None = None
    if engine is SRUN:
        local = tasks_here(environ, host)
    elif engine.local_size and environ.get(engine.local_size):
        local = whole_number(environ, engine.local_size, 1, world_size)
    bare = engine is TORCHRUN and not any(environ.get(name) for name in TORCHRUNS_OWN)
    return ClusterRank(engine.name, rank, world_size, local_rank, local or 1, host, local is not None, bare)


def tasks_here(environ: Mapping[str, str], host: int | None) -> int | None:
    """Tasks of our step on our node, from Slurm's '2(x3),1'; None where it does not say."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE") or ""
    counts: list[int] = []
    for piece in text.split(","):
        found = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", piece.strip())
        if not found:
            return None
        counts += [int(found[1])] * min(int(found[2] or 1), 100_000)
    return counts[host or 0] if (host or 0) < len(counts) else None


def whole_number(environ: Mapping[str, str], name: str, low: int, high: int | None) -> int:
    """A variable's number within [low, high]. Raises SpecError."""
    text = environ[name]
    span = f"{low} to {high}" if high is not None else f"{low} or more"
    if not text.isascii() or not text.isdigit() or int(text) < low or (high is not None and int(text) > high):
        raise SpecError(f"the environment variable {name}={text!r} is not a whole number of {span}")
    return int(text)


def _half(engine: Engine, environ: Mapping[str, str]) -> SpecError:
    lacks = missing(engine, environ)
    there = [name for name in engine.needed if environ.get(name)]
    what = "variables" if len(lacks) > 1 else "variable"
    there_too = f" beside {', '.join(there)}" if there else ""
    return SpecError(
        f"the ranks of {engine.name} lack the environment {what} {', '.join(lacks)}{there_too}",
        hint=f"{engine.name} sets all of them; if it did not start this, unset {' '.join(there) or 'SLURM_STEP_ID'}",
    )
