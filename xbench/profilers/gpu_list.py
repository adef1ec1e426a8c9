"""GPUs of a machine and the links between them, from NVML.

GPUs that NVLink connects (directly or through a switch) exchange gradients many times faster than GPUs behind a shared
PCIe bridge. Those are faster than GPUs on different processors. So the links are the first fact about a cost model. The
NVML module is a parameter, as in `gpu`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from xbench.records.parts import Gpu, GpuLink

PATHS: Mapping[int, str] = {
    0: "one board",
    10: "a PCIe switch",
    20: "several PCIe switches",
    30: "a PCIe host bridge",
    40: "the processor",
    50: "the link between processors",
}
"""Names by NVML's nvmlGpuTopologyLevel: the nearest component that two GPUs share."""

OLD_NVLINKS = 18
"""Number of links for modules that do not report the maximum."""


def list_gpus(nvml: Any) -> list[Gpu]:
    """All GPUs, in NVML's order, which CUDA_VISIBLE_DEVICES does not change."""
    return [_gpu(nvml, index) for index in range(_said(nvml, "nvmlDeviceGetCount") or 0)]


def list_links(nvml: Any, gpus: int) -> list[GpuLink]:
    """The best path between each two of the first `gpus` GPUs, where NVML reports it."""
    handles = [_said(nvml, "nvmlDeviceGetHandleByIndex", index) for index in range(gpus)]
    found = []
    for one, other in combinations(range(gpus), 2):
        path = _path(nvml, handles[one], handles[other])
        if path is not None:
            found.append(GpuLink(one=one, other=other, path=path))
    return found


def driver_versions(nvml: Any) -> dict[str, str | None]:
    """The driver's version, and the newest CUDA version that it supports."""
    cuda = _said(nvml, "nvmlSystemGetCudaDriverVersion")
    return {
        "driver": _text(_said(nvml, "nvmlSystemGetDriverVersion")),
        "driver_cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
    }


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = _said(nvml, "nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return Gpu(index=index, name="a GPU that does not answer")

    def said(question: str, *arguments: Any) -> Any:
        return _said(nvml, f"nvmlDeviceGet{question}", handle, *arguments)

    memory, pci, limit_mw, mig = said("MemoryInfo"), said("PciInfo"), said("EnforcedPowerLimit"), said("MigMode")
    return Gpu(
        index=index,
        name=_text(said("Name")) or "unknown",
        uuid=_text(said("UUID")),
        memory_bytes=memory.total if memory is not None else None,
        pci_bus_id=_text(pci.busId) if pci is not None else None,
        pcie_generation=said("MaxPcieLinkGeneration"),
        pcie_width=said("CurrPcieLinkWidth"),
        pcie_max_width=said("MaxPcieLinkWidth"),
        nvlinks=_nvlinks(nvml, handle),
        sm_clock_max_mhz=said("MaxClockInfo", nvml.NVML_CLOCK_SM),
        power_limit_w=limit_mw / 1000 if limit_mw is not None else None,
        mig=bool(mig[0]) if mig is not None else False,
    )


def _nvlinks(nvml: Any, handle: Any) -> int | None:
    """Number of active links; None where the GPU has no links."""
    links = range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", OLD_NVLINKS))
    states = [_said(nvml, "nvmlDeviceGetNvLinkState", handle, link) for link in links]
    known = [state for state in states if state is not None]
    return sum(1 for state in known if state) if known else None


def _path(nvml: Any, one: Any, other: Any) -> str | None:
    if one is None or other is None:
        return None
    joined = _said(nvml, "nvmlDeviceGetP2PStatus", one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
    if joined is not None and joined == nvml.NVML_P2P_STATUS_OK:
        return "NVLink"
    shared = _said(nvml, "nvmlDeviceGetTopologyCommonAncestor", one, other)
    return PATHS.get(shared) if shared is not None else None


def _said(nvml: Any, question: str, *arguments: Any) -> Any:
    """NVML's result, or None where the module, driver or GPU has none."""
    try:
        return getattr(nvml, question)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def _text(value: Any) -> str | None:
    """Decode bytes, which older versions of the module return."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
