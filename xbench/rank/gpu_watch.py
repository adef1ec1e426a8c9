"""GPU counters of a rank: one sampler per rank on a GPU, with each block's readings in the journal.

It does nothing on a CPU. If the counters are not available, it reports the reason once, and the run continues.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import asdict
from typing import Any

import torch

from xbench.profilers.gpu import NotAvailable, Sampler, find_device, load_nvml
from xbench.rank.events import GpuMissing, GpuWatched
from xbench.rank.journal import Journal


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
            self._journal.write(GpuWatched(**facts, **asdict(window)))
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
