"""Ranks that an engine (torchrun, srun, mpirun) started. This fabric starts nothing itself.

Every engine tells a rank its place in its own variables; ENGINES is the table. A rank may see the variables of several
engines, because engines nest: torchrun's agent (TORCHELASTIC_RUN_ID) is always the innermost, and srun the outermost
(mpirun starts its ranks through it inside an allocation). All others, and RANK and WORLD_SIZE that a script set by
hand, must give the same rank and world size. An incomplete set is an error, unless it agrees with another engine's
complete set: Slurm's PMI plug-ins set only PMI_RANK and PMI_SIZE.

Slurm sets SLURM_PROCID in the shell of a batch script and of an allocation as well, where no ranks were started. Ranks
are in a *step*: SLURM_STEP_ID is a number below 0xfffffff0; the batch script's, the external and the interactive step
are above (slurm.h). `srun --pty bash` is a step of one task. A step of one counts as ranks only if the user names the
fabric.
"""

from __future__ import annotations

import os
import re
import socket
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil

from xbench.errors import SpecError
from xbench.fabrics.fabric import Fabric
from xbench.spec import FabricSpec, known_options
from xbench.text import counted

FIRST_SPECIAL_STEP = 0xFFFFFFF0
HINT = "torchrun --nproc-per-node 8 -m xbench compare --fabric cluster; srun and mpirun do, too"

FIRST_PORT, PORTS = 20000, 10000
LOOPBACK = "127.0.0.1"

_JOB_NAMES = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "HYDRA_BSTRAP_JOBID", "I_MPI_HYDRA_UUID")


@dataclass(frozen=True)
class Engine:
    """Names of the variables by which an engine tells a rank its place."""

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str | None = None
    host: str | None = None
    """Number of the host, if the engine gives one."""
    also: tuple[str, ...] = ()
    """Further variables that must be set."""

    @property
    def needed(self) -> tuple[str, ...]:
        """Variables without which a set is incomplete."""
        return (self.rank, self.size, self.local_rank, *self.also)


TORCHRUN = Engine(
    "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", ("MASTER_ADDR", "MASTER_PORT")
)
OPEN_MPI = Engine(
    "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"
)
HYDRA = Engine("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
SRUN = Engine("srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", host="SLURM_NODEID")

TORCHRUNS_OWN = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "GROUP_RANK")
"""Variables that torchrun sets, and scripts that set a rank by hand do not."""

ENGINES = (TORCHRUN, OPEN_MPI, HYDRA, SRUN)
"""Engines, innermost first where they nest."""


@dataclass(frozen=True)
class ClusterRank:
    """This process's place among the ranks that an engine started."""

    engine: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    """1 if the engine does not tell."""
    host: int | None = None
    """Number of the host, if the engine gives it."""
    counted: bool = True
    """True if `local_world_size` is known."""
    bare: bool = False
    """True if RANK and WORLD_SIZE are set without torchrun's other variables: an old run may have left them."""

    @property
    def source(self) -> str:
        """Start of a sentence that names the evidence for the ranks."""
        if self.bare:
            return f"RANK={self.rank} and WORLD_SIZE={self.world_size} are set in this shell"
        return f"{self.engine} started {counted(self.world_size, 'rank')}"

    @property
    def remedy(self) -> str | None:
        """Remedy if the other ranks do not come; None if an engine did start them."""
        return f"if no engine started them, unset {' '.join(TORCHRUN.needed)}" if self.bare else None

    @property
    def hosts(self) -> int:
        """Number of hosts if every host has as many ranks as this one, else that of ranks."""
        even = self.world_size % self.local_world_size == 0
        return self.world_size // self.local_world_size if even else self.world_size


def ranks_around(environ: Mapping[str, str]) -> ClusterRank | None:
    """This process's place among started ranks, or None without any.

    Raises SpecError, one sentence, for an incomplete set of variables, for two engines that contradict each other, and
    for a variable that is not a number.
    """
    claimed = [engine for engine in ENGINES if _claims(engine, environ)]
    complete = [engine for engine in claimed if not _missing(engine, environ)]
    if not claimed:
        if environ.get("HOROVOD_RANK"):
            raise SpecError("horovodrun started this, and xbench does not take its ranks from horovodrun", hint=HINT)
        return None
    if not complete:
        raise _incomplete(claimed[0], environ)
    inner = complete[0]
    process = _place(inner, environ)
    if inner is TORCHRUN and environ.get("TORCHELASTIC_RUN_ID"):
        return process
    for other in claimed:
        if other is inner or (other is SRUN and inner is not TORCHRUN):
            continue
        given = {name: environ[name] for name in (other.rank, other.size) if environ.get(name)}
        wanted = {other.rank: str(process.rank), other.size: str(process.world_size)}
        if any(value != wanted[name] for name, value in given.items()):
            if other not in complete:
                raise _incomplete(other, environ)
            raise SpecError(
                f"the variables of two engines contradict each other: {inner.name}'s say rank {process.rank} of "
                f"{process.world_size} ({inner.rank}, {inner.size}), and {other.name}'s say rank "
                f"{environ[other.rank]} of {environ[other.size]} ({other.rank}, {other.size})",
                hint=f"unset {inner.rank} {inner.size}, or {other.rank} {other.size}: whichever is not of this run",
            )
    return process


def _claims(engine: Engine, environ: Mapping[str, str]) -> bool:
    """True if an engine's rank or world size is in the environment, and means ranks: of Slurm's only inside a step."""
    if engine is not SRUN:
        return bool(environ.get(engine.rank) or environ.get(engine.size))
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or ""
    return step.isascii() and step.isdigit() and int(step) < FIRST_SPECIAL_STEP


def _missing(engine: Engine, environ: Mapping[str, str]) -> list[str]:
    return [name for name in engine.needed if not environ.get(name)]


def _place(engine: Engine, environ: Mapping[str, str]) -> ClusterRank:
    """This process's place from an engine's complete set. Raises SpecError naming the wrong variable."""
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
    """Tasks of this step on this node, from Slurm's '2(x3),1'; None if it does not tell."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE") or ""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part.strip())
        if not match:
            return None
        counts += [int(match[1])] * min(int(match[2] or 1), 100_000)
    return counts[host or 0] if (host or 0) < len(counts) else None


def whole_number(environ: Mapping[str, str], name: str, low: int, high: int | None) -> int:
    """A variable's number within [low, high]. Raises SpecError."""
    text = environ[name]
    span = f"{low} to {high}" if high is not None else f"{low} or more"
    if not text.isascii() or not text.isdigit() or int(text) < low or (high is not None and int(text) > high):
        raise SpecError(f"the environment variable {name}={text!r} is not a whole number of {span}")
    return int(text)


def _incomplete(engine: Engine, environ: Mapping[str, str]) -> SpecError:
    absent = _missing(engine, environ)
    present = [name for name in engine.needed if environ.get(name)]
    what = "variables" if len(absent) > 1 else "variable"
    present_text = f" beside {', '.join(present)}" if present else ""
    return SpecError(
        f"the ranks of {engine.name} lack the environment {what} {', '.join(absent)}{present_text}",
        hint=f"{engine.name} sets all of them; if it did not start this, unset {' '.join(present) or 'SLURM_STEP_ID'}",
    )


def cluster_rank(environ: Mapping[str, str]) -> ClusterRank:
    """This process's rank, from the environment. Raises SpecError without one, or for an incomplete one."""
    process = ranks_around(environ)
    if process is None:
        raise SpecError("the cluster fabric needs ranks that an engine started, and there are none", hint=HINT)
    return process


class ClusterFabric(Fabric):
    """Ranks that an engine started. It has no host slots, because it launches nothing."""

    @classmethod
    def parse(cls, text: str, options: dict[str, str]) -> FabricSpec:
        """`cluster`, without options. Raises SpecError."""
        known_options(text, options, ())
        return FabricSpec(name="cluster")

    @staticmethod
    def resolve(environ: Mapping[str, str]) -> FabricSpec:
        """The spec with hosts and ranks from the environment. Raises SpecError."""
        process = cluster_rank(environ)
        return FabricSpec(name="cluster", hosts=process.hosts, ranks=process.world_size // process.hosts)


# --- where the ranks meet --------------------------------------------------------------------------------------------


def meeting_point(process: ClusterRank, environ: Mapping[str, str]) -> tuple[str, int]:
    """Rank 0's address and port. torchrun gives both; for the other engines:

    | engine | address | port |
    | --- | --- | --- |
    | any | MASTER_ADDR, if set | MASTER_PORT, if set |
    | srun | the first host of the step | from the job's and the step's number |
    | mpirun, mpiexec | this host, if all ranks are on it; else MASTER_ADDR must be set | from the job's name |

    Raises SpecError if nothing tells how to reach rank 0.
    """
    address = environ.get("MASTER_ADDR")
    port = whole_number(environ, "MASTER_PORT", 1, 65535) if environ.get("MASTER_PORT") else None
    if address:
        return address, port or derived_port(process, environ)
    if process.engine == "srun":
        return first_host(environ, process), port or derived_port(process, environ)
    if process.counted and process.local_world_size == process.world_size:
        return LOOPBACK, port or derived_port(process, environ)
    example = {"mpirun": "mpirun -x MASTER_ADDR=node0 …", "mpiexec": "mpiexec -genv MASTER_ADDR node0 …"}
    raise SpecError(
        f"{process.engine} does not tell the {process.world_size} ranks on several hosts how to reach rank 0, and "
        "MASTER_ADDR is not set",
        hint=f"name the first host: {example.get(process.engine, 'MASTER_ADDR=node0')}",
    )


def derived_port(process: ClusterRank, environ: Mapping[str, str]) -> int:
    """A port that all ranks of this job derive alike, and ranks of another job most likely not.

    It is below the ports that the kernel hands out. If two runs derive the same port on one host, the second reports
    it.
    """
    if process.engine == "srun":
        name = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
    else:
        name = next((environ[variable] for variable in _JOB_NAMES if environ.get(variable)), "")
    if not name and process.counted and process.local_world_size == process.world_size:
        name = str(os.getppid())  # the launcher is the parent of ranks on one host
    return FIRST_PORT + zlib.crc32(name.encode()) % PORTS


def first_host(environ: Mapping[str, str], process: ClusterRank) -> str:
    """The first host of this Slurm step, where its rank 0 is. Raises SpecError if no variable names it."""
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if process.counted and process.local_world_size == process.world_size:
        return LOOPBACK
    if not nodes:
        raise SpecError(
            "srun's environment lacks SLURM_STEP_NODELIST, so nothing says where rank 0 is",
            hint="export MASTER_ADDR=$(scontrol show hostnames | head -n 1)",
        )
    return expanded(nodes)[0]


def expanded(nodes: str) -> list[str]:
    """The hosts of a Slurm list: 'gpu[01-03,7],login' is gpu01, gpu02, gpu03, gpu7, login.

    Raises SpecError for an invalid list.
    """
    parts = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", nodes)
    if not parts or ",".join(parts) != nodes:
        raise SpecError(f"{nodes!r} is not a list of hosts as Slurm writes them", hint="set MASTER_ADDR")
    return [host for part in parts for host in _hosts_of(part, nodes)]


def _hosts_of(part: str, nodes: str) -> list[str]:
    match = re.search(r"\[([^\[\]]*)\]", part)
    if match is None:
        return [part]
    before, after = part[: match.start()], part[match.end() :]
    numbers: list[str] = []
    for span in match[1].split(","):
        low, dash, high = span.partition("-")
        if not (low.isascii() and low.isdigit()) or (dash and not (high.isascii() and high.isdigit())):
            raise SpecError(f"{nodes!r} is not a list of hosts as Slurm writes them", hint="set MASTER_ADDR")
        last = int(high) if dash else int(low)
        numbers += [str(number).zfill(len(low)) for number in range(int(low), last + 1)]
    return [host for number in numbers for host in _hosts_of(f"{before}{number}{after}", nodes)]


def address_towards(target: str) -> str | None:
    """This host's address on the way to `target`, or None without a way. No packet is sent."""
    try:
        family, kind, protocol, _, target_address = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target_address)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def is_loopback(address: str) -> bool:
    """True if only this host itself is reached by the address."""
    return address.startswith("127.") or address == "::1"


def interface_of(address: str, listing: Callable[[], Mapping[str, list[object]]] | None = None) -> str | None:
    """The network device that has an address, or None."""
    devices: Mapping[str, list[object]] = (listing or psutil.net_if_addrs)()  # type: ignore[assignment]
    for name, entries in devices.items():
        if any(str(getattr(entry, "address", "")).partition("%")[0] == address for entry in entries):
            return name
    return None


def chosen_interface(own_address: str | None, others: list[str]) -> str | None:
    """The interface for collectives, or None if Gloo's own choice works.

    Gloo takes the interface of the address to which the host's own name resolves. Debian makes that a loopback address,
    which no other host reaches. So the interface is the one that leads to rank 0.

    `own_address` is this host's address on the way to rank 0. It is loopback on rank 0's own host. If `others`, the
    addresses of ranks on other hosts, then contain other hosts, the result is the interface that leads to the first of
    them.
    """
    if own_address is not None and not is_loopback(own_address):
        return interface_of(own_address)
    other_host = next((address for address in others if not is_loopback(address)), None)
    local_address = address_towards(other_host) if other_host is not None else None
    return interface_of(local_address) if local_address is not None and not is_loopback(local_address) else None
