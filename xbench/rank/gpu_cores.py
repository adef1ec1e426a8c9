"""Device of a rank, and cores of a rank on a GPU: the cores next to that GPU, as NVML lists them.

A rank launches its kernels from one thread. A thread that moves to the other processor of a machine launches more
slowly, and steps that wait for launches then vary. A rank is bound once, before its first kernel. Threads that it
starts later inherit the cores.

The binding is a part of host tuning, so XBENCH_HOST_TUNING=off leaves it out. It is also left out if a launcher or a
container has given the rank fewer cores than the machine has, if NVML does not list the cores, and if all cores are
equally near.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import torch

from xbench.profilers.gpu import find_device, load_nvml
from xbench.rank.events import Remarked
from xbench.rank.gpu_watch import names_of
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

    Nothing is bound in the cases of the module's docstring, and the result is then None. Raises nothing.
    """
    allowed, everywhere = os.sched_getaffinity(0), os.cpu_count() or 1
    if len(allowed) < everywhere:
        return None
    try:
        nvml = load()
        near = near_cores(nvml, find_device(nvml, *names_of(torch.cuda.get_device_properties(device))), everywhere)
    except Exception:  # no NVML, or a driver without an answer; `gpu_watch` reports the reason
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
