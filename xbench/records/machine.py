"""Answer of `xbench env`: the machine, its GPUs and links, what works and what is missing. No measurements.

It is a document of its own (`kind` machine); no command reads it back.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from xbench.field_types import Count, Text
from xbench.records.parts import Environment, Part


class Gpu(Part):
    """One GPU, with NVML's index. A field is None if NVML does not report it."""

    index: Count
    name: Text
    uuid: Text | None = None
    memory_bytes: Count | None = None
    pci_bus_id: Text | None = None
    pcie_generation: Count | None = Field(
        default=None, description="the most that GPU and slot can; idle GPUs use less"
    )
    pcie_width: Count | None = Field(default=None, description="lanes in use")
    pcie_max_width: Count | None = None
    nvlinks: Count | None = Field(default=None, description="links that are up")
    sm_clock_max_mhz: Count | None = None
    power_limit_w: float | None = None
    mig: bool = Field(default=False, description="whether it is split into instances")


class GpuLink(Part):
    """Best link between two GPUs."""

    one: Count
    other: Count
    path: Text = Field(description="'NVLink', or what of PCIe the two share")


class Finding(Part):
    """One thing that xbench can use. `works` is None if it is of no use on this machine."""

    name: Text
    works: bool | None
    detail: Text
    costs: Text | None = Field(default=None, description="what cannot be had without it")
    get: Text | None = Field(default=None, description="the command that brings it")


class Machine(Part):
    """Answer of `xbench env`."""

    schema_version: Literal[1] = 1
    kind: Literal["machine"] = "machine"
    created: Text = Field(description="ISO 8601, UTC")
    environment: Environment
    fingerprints: dict[Text, Text] = Field(description="by device, 'cpu' or 'cuda': results of the same one compare")
    gpus: list[Gpu] = []
    links: list[GpuLink] = []
    findings: list[Finding] = []
    differs_from: dict[Text, list[Text]] = Field(
        default={}, description="by the path of a saved result: what keeps its times from comparing with this machine's"
    )
