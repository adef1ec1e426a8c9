"""GPU of a rank: its device, the cores next to it, and its counters.

A rank launches its kernels from one thread. A thread that moves to the other processor of a machine launches more
slowly, and steps that wait for launches then vary. So a rank is bound to the cores that NVML lists as next to its GPU,
before its first kernel. Threads that it starts later inherit them. The binding is a part of host tuning.

One sampler per rank reads the counters, and each block's readings are in the journal. If they are not available, the
reason is reported once, and the run continues.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import copy
from itertools import pairwise
from typing import Any

import torch

from xbench.profilers.gpu import NotAvailable, Sampler, find_device, load_nvml
from xbench.rank.events import GpuMissing, GpuWatched, Remarked
from xbench.rank.journal import Journal
from xbench.spec import RunSpec

WORD_BITS = 64
"""Cores in one word of NVML's bit mask."""


def device_of(run: RunSpec, local_rank: int, journal: Journal) -> torch.device:
    """Return the device of a rank. A GPU becomes the current one, and the rank is bound to the cores next to it.

    Ranks that share GPUs are assigned round-robin. Raises RuntimeError if there is no GPU.
    """
    if run.device == "cpu":
        return torch.device("cpu")
    own = local_rank % max(1, torch.cuda.device_count())
    device = torch.device("cuda", run.gpu if run.gpu is not None else own)
    bound = bind_to_gpu(device) if run.host_tuning else None
    if bound is not None:
        journal.write(Remarked(message=bound))
    torch.cuda.set_device(device)
    return device


def bind_to_gpu(device: torch.device, load: Callable[[], Any] = load_nvml) -> str | None:
    """Bind this thread, and all that it starts, to the cores next to its GPU. Return a sentence for the record.

    Nothing is bound, and the result is None, if a launcher or a container has given the rank fewer cores than the
    machine has, if NVML does not list the cores, and if all cores are equally near. Raises nothing.
    """
    allowed, everywhere = os.sched_getaffinity(0), os.cpu_count() or 1
    if len(allowed) < everywhere:
        return None
    try:
        nvml = load()
        near = near_cores(nvml, find_device(nvml, *names_of(torch.cuda.get_device_properties(device))), everywhere)
    except Exception:  # no NVML, or a driver without an answer; `GpuWatch` reports the reason
        return None
    if not near or near >= allowed:
        return None
    with suppress(OSError):  # the kernel refuses it, in a control group of other cores
        os.sched_setaffinity(0, near)
        torch.set_num_threads(min(torch.get_num_threads(), len(near)))
        return f"ranks whose GPU is nearest to cores {spans(near)} are bound to these"
    return None


def near_cores(nvml: Any, handle: Any, cores: int) -> set[int]:
    """Return the cores next to a GPU, of a machine with so many. Raises NVMLError."""
    words = nvml.nvmlDeviceGetCpuAffinity(handle, -(-cores // WORD_BITS))
    return {core for core in range(cores) if words[core // WORD_BITS] >> core % WORD_BITS & 1}


def spans(cores: Iterable[int]) -> str:
    """Return '0-3,8' for 0, 1, 2, 3 and 8."""
    ordered = sorted(cores)
    breaks = [place for place, (one, other) in enumerate(pairwise(ordered), start=1) if other != one + 1]
    runs = [ordered[begin:end] for begin, end in pairwise([0, *breaks, len(ordered)])]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


class GpuWatch:
    """Sampler of a rank's device, from construction until `stop`."""

    def __init__(self, device: torch.device, journal: Journal, load: Callable[[], Any] = load_nvml) -> None:
        self._journal = journal
        self._sampler: Sampler | None = None
        if device.type != "cuda":
            return
        try:
            uuid, pci_bus_id = names_of(torch.cuda.get_device_properties(device))
            nvml = load()
            self._sampler = Sampler(nvml, find_device(nvml, uuid, pci_bus_id), uuid or pci_bus_id or str(device))
            self._sampler.start()
        except NotAvailable as error:
            self._missing(str(error))
        except Exception as error:  # an unknown kind of driver or package must not end a run
            self._missing(f"{type(error).__name__}: {error}")

    def of_job(self, journal: Journal) -> GpuWatch:
        """Return this watch for another job of the process, which reports to that journal."""
        other = copy(self)
        other._journal = journal
        return other

    def report(self, begin_s: float, end_s: float, **facts: Any) -> None:
        """Write the readings between two instants of `time.monotonic` to the journal, with the fields `facts`."""
        if self._sampler is None:
            return
        window = self._sampler.window(begin_s, end_s)
        if window is not None:
            self._journal.write(GpuWatched(**facts, window=window))
        if self._sampler.failure is not None:
            self._missing(self._sampler.failure)
            self._sampler = None

    def stop(self) -> None:
        """Stop the sampler."""
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None

    def _missing(self, reason: str) -> None:
        self._journal.write(GpuMissing(reason=" ".join(reason.split())))


def names_of(properties: Any) -> tuple[str | None, str | None]:
    """Return (UUID, PCI bus id) from torch's device properties, in NVML's format. None for a missing one."""
    uuid, bus = getattr(properties, "uuid", None), getattr(properties, "pci_bus_id", None)
    domain, place = getattr(properties, "pci_domain_id", 0), getattr(properties, "pci_device_id", 0)
    pci_bus_id = None if bus is None else f"{domain:08x}:{bus:02x}:{place:02x}.0"
    return (None if uuid is None else str(uuid)), pci_bus_id
