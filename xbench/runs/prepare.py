"""Validation and resolution of a request before a rank is started: RunConfig → prepare → RunSpec."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence

from xbench import gpu_errors, host_tuning, profilers, spec
from xbench.config import RunConfig
from xbench.environment import listed_gpus
from xbench.errors import SpecError
from xbench.fabrics import choose, rootless
from xbench.fabrics.cluster import cluster_rank, meeting_point, ranks_around
from xbench.modes import COMPARED, IN_SEQUENCE, MODES, mode_info
from xbench.registry import imported
from xbench.schedules import obstacle, parse_modes
from xbench.workloads.probe import Preflight, probe

MAX_JOBS = 2


def check_request(config: RunConfig) -> tuple[tuple[spec.WorkloadSpec, ...], tuple[spec.ModeSpec, ...]]:
    """Return workloads and modes that fit each other. Raises SpecError.

    A single workload is doubled if a paired mode needs two. Two jobs at once are compared with the same two one after
    the other, so `sequential` is added if it is missing.
    """
    workloads, modes = tuple(config.workloads), tuple(config.modes)
    if not modes and config.kind == "comparison":
        modes = parse_modes(COMPARED)
    if not workloads:
        raise SpecError("no workload was named", hint="xbench list workloads lists them")
    paired = [mode.text for mode in modes if mode.paired]
    if len(workloads) > MAX_JOBS:
        raise SpecError(f"{len(workloads)} workloads were named, and at most {MAX_JOBS} jobs can share the devices")
    if paired and len(workloads) == 1:
        workloads = workloads * 2
    if config.reference is not None and config.reference not in [mode.text for mode in modes]:
        raise SpecError(
            f"the reference {config.reference!r} is not among the modes",
            hint=f"it can be {', '.join(m.text for m in modes)}",
        )
    # Different jobs at once are compared through the time that each takes alone.
    if paired and (config.judged or len(set(workloads)) > 1) and not any(m.name == IN_SEQUENCE for m in modes):
        base = MODES.entry(IN_SEQUENCE).base_schedule
        modes = (*modes, spec.ModeSpec(text=IN_SEQUENCE, name=IN_SEQUENCE, carrier=base, paired=True))
    check_steps(workloads, modes)
    return workloads, modes


def check_steps(workloads: Sequence[spec.WorkloadSpec], modes: Sequence[spec.ModeSpec]) -> None:
    """Raise SpecError for a mode that cannot run the training steps of a workload."""
    flag = next((flag for workload in workloads if (flag := workload.updates_together) is not None), None)
    if flag is None:
        return
    late = next((mode for mode in modes if mode_info(mode.carrier).may_put_off), None)
    if late is not None:
        raise SpecError(
            f"mode {late.text!r} updates each layer in the next forward pass, and {flag} needs all gradients before "
            "the first update",
            hint=f"leave {flag} or the mode out",
        )


UNTRIED_ON_GPUS = (
    "this version was measured on one H100 and on CPU cores, never on several GPUs: in a checkout of xbench, make gpu "
    "checks it on yours"
)


def default_reference(modes: Sequence[spec.ModeSpec]) -> str:
    """Return the default reference: ddp, else the first mode of one job that may be advised, else `sequential`.

    Without any of them it is the first mode.
    """
    names = [
        "ddp",
        *(mode.name for mode in modes if not mode.paired and mode_info(mode.name).equivalent_to_ddp),
        IN_SEQUENCE,
    ]
    return next((mode.text for name in names for mode in modes if mode.name == name), modes[0].text)


def added_mode_notes(asked: Sequence[spec.ModeSpec], modes: Sequence[spec.ModeSpec]) -> list[str]:
    """Return a message for each mode that `check_request` added."""
    paired = [mode.text for mode in asked if mode.paired]
    compared = f"{' and '.join(paired)} {'is' if len(paired) == 1 else 'are'} compared"
    return [
        f"{mode.text} is measured too: {compared} with two jobs one after the other"
        for mode in modes
        if mode.text not in [other.text for other in asked]
    ]


def check_unprobed(config: RunConfig) -> tuple[tuple[spec.WorkloadSpec, ...], tuple[spec.ModeSpec, ...], list[str]]:
    """Check everything that needs no probe, which takes seconds.

    Return workloads, modes, and messages for the user. Raises UsageError. Starts the command again in a user namespace
    if the fabric needs that.
    """
    workloads, modes = check_request(config)
    host_tuning.is_on()
    profilers.share()
    check_links(config.fabric, config.device)
    notes = check_available(modes, config.compress)
    notes += added_mode_notes(config.modes or modes, modes)
    ours = ranks_around(os.environ) if config.fabric.name == "auto" else None
    if config.fabric.name != "auto" or (ours is not None and ours.world_size > 1):
        asked, _ = _chosen(config.fabric, 0)
        check_fabric(asked, modes)
        check_real(asked, modes)
        if rootless.reexec_needed(asked):
            rootless.reexec(sys.argv)
    return workloads, modes, notes


def prepare(config: RunConfig) -> tuple[spec.RunSpec, Preflight, list[str]]:
    """Fill in every default and check everything that can be checked before a rank is started.

    Return the spec, the probe's result, and messages for the user. Raises UsageError.
    """
    workloads, modes, notes = check_unprobed(config)
    tuned = host_tuning.is_on()
    among = _ranks_here(config.fabric)
    # Beside jobs at once, which need two processes, the first process holds the second job of turns once more.
    twice = {"at once", "in turns"} <= {mode_info(mode.name).sharing for mode in modes}
    found = probe([*workloads, *(workloads[1:] if twice else ())], config.device, *among)
    slowed = gpu_errors.check_variables(found.device, os.environ)
    found = found.model_copy(update={"workloads": found.workloads[: len(workloads)], "slowed": slowed})
    if found.device == "cpu" and config.device == "auto" and not gpu_errors.hides_all(os.environ):
        unusable = gpu_errors.unusable_gpu("", found.cuda, listed_gpus())
        if unusable is not None:
            raise unusable
    if found.device == "cuda":
        if found.gpus > 1:
            notes.append(UNTRIED_ON_GPUS)
        check_on_gpu(modes)
    notes += found.warnings
    device: spec.DeviceType = found.device
    fabric, reason = _chosen(config.fabric, found.gpus if device == "cuda" else 0)
    if config.fabric.name == "auto":
        notes.append(reason)
    check_links(fabric, device)
    if rootless.reexec_needed(fabric):
        rootless.reexec(sys.argv)
    check_fabric(fabric, modes)
    check_real(fabric, modes)
    if fabric.world_size < 2:
        unplanned = [mode.text for mode in modes if mode_info(mode.name).needs_link]
        modes = tuple(mode for mode in modes if not mode_info(mode.name).needs_link)
        if unplanned:
            notes.append(
                f"left out, because they are planned from a link's speed and no link is used: {', '.join(unplanned)}"
            )
        notes.append("a world of one: nothing travels, so this shows what a schedule itself costs the training loop")
    apart = fabric.name == "cluster" and found.gpus == 1 and os.environ.get("CUDA_VISIBLE_DEVICES")
    if device == "cuda" and fabric.name != "emulated" and not apart:  # emulated ranks may share a GPU
        ranks, _ = _ranks_here(fabric)
        gpu_errors.check_ranks(str(fabric), ranks, found.gpus, found.gpu, found.nccl, os.environ)
    resolved = tuple(found.specs)
    reference = config.reference
    if reference is not None and reference not in [mode.text for mode in modes]:
        raise SpecError(f"the reference {reference!r} is planned from a link's speed, and {fabric} has no link")
    if config.kind == "comparison" and reference is None:
        reference = default_reference(modes)
    compress = config.compress
    if compress is not None and all(item.record.dtype == compress for item in found.workloads):
        notes.append(f"nothing to compress: gradients are {compress} already")
        compress = None
    run = spec.RunSpec(
        kind=config.kind,
        workloads=resolved,
        modes=modes,
        reference=reference,
        fabric=fabric,
        effort=config.effort,
        device=device,
        gpu=found.gpu,
        timeout_s=config.timeout_s,
        host_tuning=tuned,
        compress=compress,
    )
    return run, found, notes


def _chosen(asked: spec.FabricSpec, gpus: int) -> tuple[spec.FabricSpec, str]:
    """Return the fabric, and the reason for the choice. Raises SpecError."""
    fabric, reason = choose(asked, gpus)
    if fabric.name == "cluster":
        meeting_point(cluster_rank(os.environ), os.environ)
    return fabric, reason


def check_fabric(fabric: spec.FabricSpec, modes: Sequence[spec.ModeSpec]) -> None:
    """Raise SpecError for modes that a resolved fabric cannot run."""
    apart = next((mode.text for mode in modes if mode_info(mode.name).sharing == "at once"), None)
    if apart is not None and fabric.name in ("cluster", "emulated"):
        one = (
            "ranks that another launcher started are one" if fabric.name == "cluster" else "an emulated link is of one"
        )
        raise SpecError(
            f"mode {apart!r} needs two sets of ranks, and {one}",
            hint="try --fabric local:ranks=2, or --modes crossover",
        )
    for mode in modes:
        needs = mode_info(mode.name).ranks
        if needs is not None:
            imported(needs)(mode.text, dict(mode.options), fabric.world_size, fabric.ranks)
    if fabric.world_size >= 2 or not modes:
        return
    paired = [mode.text for mode in modes if mode.paired]
    if paired:
        raise SpecError(
            f"mode {paired[0]!r} needs gradients that travel, and {fabric} has 1 rank",
            hint="start more ranks" if fabric.name == "cluster" else "try --fabric local:ranks=2",
        )
    if all(mode_info(mode.name).needs_link for mode in modes):
        raise SpecError(
            f"mode {modes[0].text!r} is planned from a link's speed, and {fabric} has 1 rank and no link",
            hint="try --fabric local:ranks=2, or --modes compute,ddp,single,wfbp",
        )


def check_links(fabric: spec.FabricSpec, device: str) -> None:
    """Raise SpecError for GPUs on shaped links, which NCCL would not use.

    NCCL tells hosts apart by host name and boot id, and all namespaces share both.
    """
    if fabric.name == "shaped" and device.startswith("cuda"):
        raise SpecError(
            f"{fabric} joins namespaces of one machine, which NCCL takes for one host: on GPUs its ranks would share "
            "GPUs, or send past the shaped links",
            hint="try --fabric local for the GPUs' own links, or --fabric emulated for slower ones, or --device cpu",
        )


def check_on_gpu(modes: Sequence[spec.ModeSpec]) -> None:
    """Raise SpecError for kernels of a mode that nothing can make."""
    compiled = next((mode.text for mode in modes if mode_info(mode.name).compiled), None)
    if compiled is not None and importlib.util.find_spec("triton") is None:
        raise SpecError(
            f"mode {compiled!r} needs Triton, of which torch.compile makes kernels for GPUs, and it is not installed",
            hint="pip install triton",
        )


def _ranks_here(fabric: spec.FabricSpec) -> tuple[int, int | None]:
    """Return the ranks of one job on this machine, before `auto` is resolved, and ours if an engine started them."""
    ours = ranks_around(os.environ) if fabric.name in ("auto", "cluster") else None
    if ours is not None and (ours.world_size > 1 or fabric.name == "cluster"):
        return ours.local_world_size, ours.local_rank
    return (2 if fabric.name == "auto" else fabric.processes), None


# --- Horovod ---------------------------------------------------------------------------------------------------------


def check_available(modes: Sequence[spec.ModeSpec], compress: spec.Compress | None) -> list[str]:
    """Return messages on modes that will fail here, while the others run.

    Raises SpecError if no other mode could run, and for a mode that does not compress what it sends, if it is to.
    Nothing here imports Horovod.
    """
    uncompressed = [mode.text for mode in modes if not mode_info(mode.carrier).compresses]
    if compress is not None and uncompressed:
        raise SpecError(
            f"mode {uncompressed[0]!r} sends parameters and gradients as they are, and not as {compress}",
            hint="leave --compress or the mode out",
        )
    reasons = {mode.text: why for mode in modes if (why := obstacle(mode.carrier)) is not None}
    remedies = {mode.text: mode_info(mode.carrier).remedy for mode in modes if mode.text in reasons}
    builds = {text: f"{command} builds it" for text, command in remedies.items() if command is not None}
    useful = [mode for mode in modes if mode_info(mode.name).reducer != "none"]
    if reasons and all(mode.text in reasons for mode in useful):
        first = next(iter(reasons))
        raise SpecError(f"mode {first!r} cannot run here: {reasons[first]}", hint=builds.get(first))
    remedy = {text: f" ({built})" for text, built in builds.items()}
    return [f"mode {text} cannot run here: {why}{remedy.get(text, '')}" for text, why in reasons.items()]


def check_real(fabric: spec.FabricSpec, modes: Sequence[spec.ModeSpec]) -> None:
    """Raise SpecError for a library on emulated links: its collectives are real, and would take no emulated time."""
    if fabric.name != "emulated":
        return
    for mode in modes:
        library = mode_info(mode.carrier).library
        if library is not None:
            raise SpecError(
                f"mode {mode.text!r} sends by {library} itself, over links that are there, and those of {fabric} "
                "are emulated",
                hint="try --device cpu --fabric shaped:hosts=2,rate=1gbit",
            )
