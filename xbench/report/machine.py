"""Text of `xbench env`: the machine, its fingerprint, what works on it, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from xbench.records import Environment
from xbench.records.parts import Finding, Gpu, GpuLink, Machine
from xbench.report.console import fact, indented, say
from xbench.text import counted
from xbench.units import format_bytes, format_clock, format_power


def render_machine(machine: Machine, console: Console) -> None:
    """Print the whole answer, at any width."""
    here = machine.environment
    physical = here.facts.get("physical_cores")
    cores = counted(here.cores, "core")
    cores += f" ({physical} physical)" if physical not in (None, "unknown", str(here.cores)) else ""
    fact(console, "machine", f"{here.hostname}: {here.cpu}, {cores}, {format_bytes(here.memory_bytes)}")
    fact(console, "software", _software(here))
    for gpu in machine.gpus:
        fact(console, f"GPU {gpu.index}", _gpu(gpu))
    if machine.links:
        fact(console, "links", _links(machine.links))
    for device, letters in machine.fingerprints.items():
        where = "the CPU" if device == "cpu" else "GPUs"
        fact(console, "results", f"made here on {where} have the fingerprint {letters}; times of the same one compare")
    for path, reasons in machine.differs_from.items():
        told = f"of {path} compare with those taken here"
        if reasons:
            told = f"of {path} do not compare with those taken here: {'; '.join(reasons)}"
        fact(console, "times", told, "yellow" if reasons else "green")
    _told(console, "What works here", [one for one in machine.findings if one.works])
    _told(console, "What is of no use here", [one for one in machine.findings if one.works is None])
    missing = [one for one in machine.findings if one.works is False]
    if missing:
        console.print()
        say(console, "What is missing, and what that costs", "italic")
    for one in missing:
        indented(console, f"{one.name}: {one.detail}")
        for label, said in (("costs", one.costs), ("to get it", one.get)):
            if said:
                indented(console, f"  {label}: {said}")


def _told(console: Console, title: str, told: Sequence[Finding]) -> None:
    if not told:
        return
    console.print()
    say(console, title, "italic")
    grid = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2))
    for one in told:
        grid.add_row(Text(one.name), Text(one.detail))
    console.print(Padding(grid, (0, 0, 0, 2)))


def _software(here: Environment) -> str:
    commit = f" ({here.commit[:10]})" if here.commit else ""
    driver = here.facts.get("nvidia_driver")
    return (
        f"{here.facts.get('system', 'unknown system')}, Python {here.python}, torch {here.torch or 'not installed'}"
        + (f", NVIDIA driver {driver}" if driver else "")
        + f", xbench {here.xbench}{commit}"
    )


def _gpu(gpu: Gpu) -> str:
    """Format a GPU as 'NVIDIA H200, 141 GiB, PCIe 5 ×16, 18 NVLinks, up to 1.98 GHz, 700 W at most'."""
    parts = [gpu.name, *([format_bytes(gpu.memory_bytes)] if gpu.memory_bytes is not None else [])]
    if gpu.pcie_generation is not None and gpu.pcie_width is not None:
        less = gpu.pcie_max_width is not None and gpu.pcie_width < gpu.pcie_max_width
        parts.append(f"PCIe {gpu.pcie_generation} ×{gpu.pcie_width}" + (f" of ×{gpu.pcie_max_width}" if less else ""))
    if gpu.nvlinks is not None:
        parts.append(counted(gpu.nvlinks, "NVLink"))
    parts += [f"up to {format_clock(gpu.sm_clock_max_mhz)}"] if gpu.sm_clock_max_mhz is not None else []
    parts += [f"{format_power(gpu.power_limit_w)} at most"] if gpu.power_limit_w is not None else []
    return ", ".join(parts) + (", split into instances (MIG)" if gpu.mig else "")


def _links(links: Sequence[GpuLink]) -> str:
    """Format links as 'NVLink between all', or by kind: 'NVLink between 0–1, 2–3; a PCIe host bridge between 0–2'."""
    paths = dict.fromkeys(link.path for link in links)
    if len(paths) == 1:
        return f"{links[0].path} between all"
    pairs = {path: [f"{link.one}–{link.other}" for link in links if link.path == path] for path in paths}
    return "; ".join(f"{path} between {', '.join(names)}" for path, names in pairs.items())
