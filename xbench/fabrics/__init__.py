"""Fabrics, which connect the ranks: the registry, the choice that `auto` makes, and their opening.

Importing this package imports no torch, and no fabric's code before that fabric is used.

    spec = parse_fabric("shaped:hosts=2,rate=1gbit")
    spec, reason = choose(spec, gpus=0, environ=os.environ)
    if rootless.reexec_needed(spec):
        rootless.reexec(sys.argv)
    with open_fabric(spec, run_id) as fabric:
        fabric.measure_bandwidth()
        ...
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from xbench.errors import SpecError, nearest
from xbench.fabrics import rootless
from xbench.fabrics.cluster import ClusterFabric, ranks_around
from xbench.fabrics.fabric import MAX_RANKS, Fabric, HostSlot
from xbench.interrupts import stop_signals_interrupt
from xbench.limits import require_files
from xbench.registry import Registry
from xbench.spec import DeviceType, FabricSpec, known_options, parse_options

__all__ = ["FABRICS", "Fabric", "HostSlot", "choose", "new_run_id", "open_fabric", "parse_fabric", "rootless"]

FABRICS: Registry[type[Fabric]] = Registry("fabric", listing="xbench list fabrics")
"""The fact `keys` of an entry lists the options that its `parse` takes, for completion."""

FABRICS.add(
    "auto", "", "the best available: an engine's ranks, several GPUs, one GPU and an emulated link, shaped, local"
)
FABRICS.add("local", "xbench.fabrics.fabric:LocalFabric", "ranks on this machine: local:ranks=2", keys=("ranks",))
FABRICS.add(
    "shaped",
    "xbench.fabrics.shaped:ShapedFabric",
    "links with a limited rate: shaped:hosts=2,rate=1gbit,ranks=1",
    keys=("hosts", "rate", "ranks"),
)
FABRICS.add(
    "emulated",
    "xbench.fabrics.emulated:EmulatedFabric",
    "real computation, collectives timed by a cost model: emulated:workers=64,rate=25gbit,latency=20us or from=RECORD",
    keys=("workers", "rate", "latency", "topology", "from", "link", "contention", "ranks"),
)
FABRICS.add("cluster", "xbench.fabrics.cluster:ClusterFabric", "the ranks that torchrun, srun or mpirun started")


def parse_fabric(text: str) -> FabricSpec:
    """A FabricSpec from 'auto', 'local:ranks=4', 'shaped:hosts=2,rate=1gbit', 'emulated:workers=64' or 'cluster'.

    Raises SpecError naming the wrong value and the nearest valid one.
    """
    name, options = parse_options(text)
    if name not in FABRICS:
        close = nearest(name, FABRICS.names())
        hint = f"did you mean {close!r}?" if close else f"one of {', '.join(FABRICS.names())}"
        raise SpecError(f"unknown fabric {name!r}", hint=hint)
    if name == "auto":
        known_options(text, options, ())
        return FabricSpec(name="auto")
    return FABRICS.load(name).parse(text, options)


def choose(spec: FabricSpec, gpus: int, environ: Mapping[str, str] = os.environ) -> tuple[FabricSpec, str]:
    """The fabric to use, and the reason as one sentence. Only `auto` changes; the others are checked on this machine.

    `auto` is the first of these that applies: the ranks that an engine started (except a Slurm step of one task, which
    an interactive shell is, too); all GPUs of this machine, if it has several; an emulated link for a single GPU; two
    hosts at 1 Gbit/s; two local ranks.
    Raises SpecError for a fabric that cannot work here.
    """
    if spec.name == "cluster":
        return ClusterFabric.resolve(environ), "as requested"
    if spec.name == "shaped" and (obstacle := shaped_obstacle()) is not None:
        raise SpecError(f"{str(spec)!r} cannot be raised: {obstacle}", hint=f"{REMEDY}, or use --fabric local:ranks=2")
    if spec.name != "auto":
        return spec, "as requested"
    process = ranks_around(environ)
    if process is not None and (process.world_size > 1 or process.engine != "srun"):
        reason = f"auto: {process.source}" + (f" ({process.remedy})" if process.remedy else "")
        return ClusterFabric.resolve(environ), reason
    if gpus >= 2:
        return FabricSpec(name="local", ranks=min(gpus, MAX_RANKS)), f"auto: {gpus} GPUs on this machine"
    if gpus == 1:
        return parse_fabric("emulated"), (
            "auto: one GPU has nobody to communicate with, so collectives are emulated: they take as long as those of "
            "64 workers over 25 Gbit/s would. --fabric emulated:workers=N,rate=R is for yours; --device cpu runs real "
            "collectives between ranks on the CPU"
        )
    obstacle = shaped_obstacle()
    if obstacle is None:
        shaped = FabricSpec(name="shaped", hosts=2, rate="1gbit")
        way = ", in a user namespace, without root" if rootless.reexec_needed(shaped, environ) else ""
        return shaped, f"auto: two hosts on this machine, joined by links held to 1 Gbit/s{way}"
    return FabricSpec(name="local", ranks=2), (
        f"auto: two local ranks over loopback, because {obstacle}; with root and iproute2 this would have shown two "
        f"hosts on links held to 1 Gbit/s, where schedules differ most ({REMEDY})"
    )


REMEDY = "run it as root with iproute2 installed (apt-get install iproute2)"


def shaped_obstacle() -> str | None:
    """Reason why shaped links work neither in this process nor in a user namespace, or None."""
    from xbench.fabrics import shaped

    reason = shaped.obstacle()
    if reason is None or links_missing() or rootless.MARKER in os.environ or os.geteuid() == 0:
        return reason
    rootless_reason = rootless.obstacle()
    return None if rootless_reason is None else f"{reason}, and {rootless_reason}"


def links_missing() -> bool:
    """True if iproute2's tools are not installed."""
    from xbench.fabrics import links

    return links.tool("ip") is None or links.tool("tc") is None


def new_run_id() -> str:
    """Six random hexadecimal digits, the id in the names of a run's namespaces."""
    return secrets.token_hex(3)


@contextmanager
def open_fabric(spec: FabricSpec, run_id: str | None = None, *, device: DeviceType = "cpu") -> Iterator[Fabric]:
    """Open the fabric of a spec that `choose` has resolved. It exists inside the context, and never after it.

    Inside, SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does. Raises FabricError if it cannot be made,
    SpecError for `auto`, UsageError if too few files may be open.
    """
    if spec.name == "auto":
        raise SpecError("fabric 'auto' has to be resolved before it is opened")
    require_files()
    with stop_signals_interrupt(), FABRICS.load(spec.name)(spec, run_id or new_run_id(), device) as fabric:
        yield fabric
