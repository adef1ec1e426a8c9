"""What a report shows of GPU counters, and of a machine."""

from __future__ import annotations

import io

import pytest
import sample_kinds as gpus
import sample_records as made
from rich.console import Console

from xbench.records import AnyRecord
from xbench.records.parts import Finding, Gpu, GpuLink, Machine
from xbench.report.formats.terminal import render
from xbench.report.machine import render_machine


def words(text: str) -> str:
    return " ".join(text.split())


def test_what_a_gpu_does_not_tell_is_not_made_up() -> None:
    assert "\n  wfbp: busy 97 %, 1.98 GHz, 41.0 GiB in use\n" in render(gpus.on_gpus(), width=60)


def test_a_profile_has_one_sentence() -> None:
    assert "2 GPUs during the profile: busy 97 %, 1.98 GHz, 1.29 kW, 41.0 GiB in use" in words(
        render(gpus.profile_on_gpus())
    )


@pytest.mark.parametrize("record", [made.comparison(), made.profile()], ids=lambda record: record.kind)
def test_without_counters_there_is_one_line(record: AnyRecord) -> None:
    without = render(record.model_copy(update={"gpu_missing": "NVML did not start (Driver Not Loaded)"}))
    assert without.count("\nGPU counters: not available: NVML did not start (Driver Not Loaded)\n") == 1


# --- a machine ----------------------------------------------------------------------------------------------------

MACHINE = Machine(
    created="2026-03-01T12:00:00Z",
    environment=made.ENVIRONMENT.model_copy(update={"device": "NVIDIA H200", "device_count": 2}),
    fingerprints={"cuda": "0a1b2c3d-4e5f6071", "cpu": "8a9b0c1d-2e3f4051"},
    gpus=[
        Gpu(index=0, name="NVIDIA H200", memory_bytes=141 * 1024**3, pcie_generation=5, pcie_width=8,
            pcie_max_width=16, nvlinks=18, sm_clock_max_mhz=1980, power_limit_w=700.0),
        Gpu(index=1, name="NVIDIA H200", mig=True),
    ],
    links=[GpuLink(one=0, other=1, path="NVLink")],
    findings=[
        Finding(name="torch", works=True, detail="2.15.0, built for CUDA 13.2"),
        Finding(name="torchvision", works=None, detail="torch comes first"),
        Finding(name="shaped links", works=False, detail="no ip", costs="no links", get="apt-get install iproute2"),
    ],
)  # fmt: skip


def shown(machine: Machine, width: int = 100) -> list[str]:
    console = Console(file=io.StringIO(), width=width, no_color=True, highlight=False, markup=False)
    render_machine(machine, console)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_machine_is_shown_whole() -> None:
    assert shown(MACHINE) == [
        "machine    bench1: AMD EPYC 7543 32-Core Processor, 8 cores, 32.0 GiB",
        "software   unknown system, Python 3.11.7, torch 2.15.0, xbench 0.1.0 (0123456789)",
        "GPU 0      NVIDIA H200, 141 GiB, PCIe 5 ×8 of ×16, 18 NVLinks, up to 1.98 GHz, 700 W at most",
        "GPU 1      NVIDIA H200, split into instances (MIG)",
        "links      NVLink between all",
        "results    made here on GPUs have the fingerprint 0a1b2c3d-4e5f6071; times of the same one compare",
        "results    made here on the CPU have the fingerprint 8a9b0c1d-2e3f4051; times of the same one",
        "           compare",
        "",
        "What works here",
        "  torch  2.15.0, built for CUDA 13.2",
        "",
        "What is of no use here",
        "  torchvision  torch comes first",
        "",
        "What is missing, and what that costs",
        "  shaped links: no ip",
        "    costs: no links",
        "    to get it: apt-get install iproute2",
    ]


def test_links_of_several_kinds_are_named_pair_by_pair() -> None:
    bridged = [GpuLink(one=one, other=2, path="a PCIe host bridge") for one in (0, 1)]
    links = [GpuLink(one=0, other=1, path="NVLink"), *bridged]
    lines = shown(MACHINE.model_copy(update={"links": links}))
    assert "links      NVLink between 0–1; a PCIe host bridge between 0–2, 1–2" in lines


def test_whether_a_saved_result_compares_is_one_sentence() -> None:
    differs = {"a.json": [], "b.json": ["torch: 2.11 and 2.15", "cores: 2 and 8"]}
    lines = shown(MACHINE.model_copy(update={"differs_from": differs}))
    assert "times      of a.json compare with those taken here" in lines
    assert "times      of b.json do not compare with those taken here: torch: 2.11 and 2.15; cores: 2 and 8" in lines


@pytest.mark.parametrize("width", [40, 60, 200])
def test_a_machine_fits_its_terminal(width: int) -> None:
    assert max(map(len, shown(MACHINE, width))) <= width
