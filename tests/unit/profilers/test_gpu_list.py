"""Which GPUs there are and what joins them, from a fake NVML."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from nvml_fake import FakeNvml

from xbench.profilers.gpu_list import driver_versions, list_gpus, list_links
from xbench.records.parts import Gpu, GpuLink


def machine(**changes: Any) -> FakeNvml:
    """Two GPUs, three of their four NVLinks up."""
    answers = {
        "nvmlDeviceGetCount": 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": "NVIDIA H200",
        "nvmlDeviceGetUUID": lambda index: f"GPU-{index}",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=1, total=141 * 1024**3),
        "nvmlDeviceGetPciInfo": lambda index: SimpleNamespace(busId=f"00000000:{index:02x}:00.0"),
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetCurrPcieLinkWidth": 8,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetNvLinkState": lambda index, link: int(link < 3),
        "nvmlDeviceGetMaxClockInfo": lambda index, clock: 1980,
        "nvmlDeviceGetEnforcedPowerLimit": 700_000,
        "nvmlDeviceGetMigMode": [0, 0],
        "nvmlDeviceGetP2PStatus": lambda one, other, capability: 0,
        "nvmlDeviceGetTopologyCommonAncestor": 50,
        "nvmlSystemGetDriverVersion": "580.65.06",
        "nvmlSystemGetCudaDriverVersion": 13020,
    }
    return FakeNvml(**answers | changes)


def test_a_gpu_says_everything() -> None:
    first, second = list_gpus(machine())
    assert first == Gpu(
        index=0, name="NVIDIA H200", uuid="GPU-0", memory_bytes=141 * 1024**3, pci_bus_id="00000000:00:00.0",
        pcie_generation=5, pcie_width=8, pcie_max_width=16, nvlinks=3, sm_clock_max_mhz=1980, power_limit_w=700.0,
        mig=False,
    )  # fmt: skip
    assert (second.index, second.uuid) == (1, "GPU-1")


def test_what_a_gpu_does_not_say_is_none() -> None:
    no = FakeNvml.NVMLError_NotSupported
    silent = machine(**{name: no for name in machine().answers if name.startswith("nvmlDeviceGet")})
    silent.answers |= {"nvmlDeviceGetCount": 1, "nvmlDeviceGetHandleByIndex": lambda index: index}
    assert list_gpus(silent) == [Gpu(index=0, name="unknown")]


def test_a_gpu_that_does_not_answer_is_listed() -> None:
    assert list_gpus(machine(nvmlDeviceGetHandleByIndex=FakeNvml.NVMLError_GpuIsLost, nvmlDeviceGetCount=1)) == [
        Gpu(index=0, name="a GPU that does not answer")
    ]
    assert list_links(machine(nvmlDeviceGetHandleByIndex=FakeNvml.NVMLError_GpuIsLost), 2) == []


def test_an_older_module_answers_in_bytes_and_without_newer_functions() -> None:
    nvml = machine(nvmlDeviceGetName=b"Tesla V100", nvmlSystemGetDriverVersion=b"470.1")
    del nvml.answers["nvmlDeviceGetMigMode"]
    assert list_gpus(nvml)[0].name == "Tesla V100"
    assert driver_versions(nvml) == {"driver": "470.1", "driver_cuda": "13.2"}


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({}, "NVLink"),
        ({"nvmlDeviceGetP2PStatus": 1}, "the link between processors"),
        ({"nvmlDeviceGetP2PStatus": FakeNvml.NVMLError_NotSupported, "nvmlDeviceGetTopologyCommonAncestor": 30},
         "a PCIe host bridge"),
    ],
)  # fmt: skip
def test_two_gpus_are_joined_by_the_best_there_is(changes: dict[str, Any], path: str) -> None:
    assert list_links(machine(**changes), 2) == [GpuLink(one=0, other=1, path=path)]


def test_a_way_that_nvml_does_not_tell_is_left_out() -> None:
    unknown = FakeNvml.NVMLError_NotSupported
    assert list_links(machine(nvmlDeviceGetP2PStatus=unknown, nvmlDeviceGetTopologyCommonAncestor=unknown), 2) == []
    assert list_links(machine(), 1) == []
