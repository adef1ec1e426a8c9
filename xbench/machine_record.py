"""What `xbench env` found: the machine, its GPUs and their links, what works and what is missing. No measurements.

A document of its own (`kind` machine): no command reads it back.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from xbench.record_parts import Environment, Part


class Gpu(Part):
    """One GPU as NVML numbers it; None where it does not say."""

    index: int
    name: str
    uuid: str | None = None
    memory_bytes: int | None = None
    pci_bus_id: str | None = None
    pcie_generation: int | None = Field(default=None, description="the most that GPU and slot can; idle GPUs use less")
    pcie_width: int | None = Field(default=None, description="lanes in use")
    pcie_max_width: int | None = None
    nvlinks: int | None = Field(default=None, description="links that are up")
    sm_clock_max_mhz: int | None = None
    power_limit_w: float | None = None
    mig: bool = Field(default=False, description="whether it is split into instances")


class GpuLink(Part):
    """The best way between two GPUs."""

    one: int
    other: int
    path: str = Field(description="'NVLink', or what of PCIe the two share")


class Finding(Part):
    """One thing that xbench can use. `works` None: of no use on this machine."""

    name: str
    works: bool | None
    detail: str
    costs: str | None = Field(default=None, description="what cannot be had without it")
    get: str | None = Field(default=None, description="the command that brings it")


class Machine(Part):
    """The answer of `xbench env`."""

    schema_version: Literal[1] = 1
    kind: Literal["machine"] = "machine"
    created: str = Field(description="ISO 8601, UTC")
    environment: Environment
    fingerprints: dict[str, str] = Field(description="by device, 'cpu' or 'cuda': results of the same one compare")
    gpus: list[Gpu] = []
    links: list[GpuLink] = []
    findings: list[Finding] = []
    differs_from: dict[str, list[str]] = Field(
        default={}, description="by the path of a saved result: what keeps its times from comparing with this machine's"
    )
