"""A fake NVML, exactly: energies, throttles, what is not supported, a device that is lost, GPUs and their links."""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from nvml_fake import FakeNvml, whole

from xbench.profilers import gpu
from xbench.profilers.gpu import (
    NotAvailable,
    Reading,
    Sampler,
    Window,
    driver_versions,
    energy_j,
    find_device,
    list_gpus,
    list_links,
    load_nvml,
    within,
)
from xbench.records.parts import Gpu, GpuLink


def sampler(nvml: FakeNvml, times: list[float] | None = None) -> Sampler:
    """A sampler without a thread; each reading looks at the clock twice, and takes a quarter of a second."""
    ticks: Iterator[float] = iter(tick for time in times or range(100) for tick in (float(time), time + 0.25))
    return Sampler(nvml, "handle", "GPU-7", clock=lambda: next(ticks))


def window(*readings: Reading, begin_s: float, end_s: float) -> Window:
    found = within("GPU-7", readings, begin_s, end_s)
    assert found is not None
    return found


def counted(*energies: float | None) -> list[Reading]:
    return [Reading(float(second), energy_j=energy) for second, energy in enumerate(energies)]


def drawn(*powers: float | None) -> list[Reading]:
    return [Reading(float(second), power_w=power) for second, power in enumerate(powers)]


# --- energy -------------------------------------------------------------------------------------------------------


COUNTED, DRAWN = counted(100.0, 200.0, 350.0, 500.0), drawn(100.0, 200.0, 200.0)


@pytest.mark.parametrize(
    ("readings", "begin_s", "end_s", "joules"),
    [
        *((COUNTED, *case) for case in [(0.0, 3.0, 400.0), (0.5, 2.5, 275.0), (1.25, 1.5, 37.5), (-0.1, 2.0, None),
                                        (2.0, 3.1, None)]),
        *((DRAWN, *case) for case in [(0.0, 2.0, 350.0), (0.5, 1.5, 187.5), (0.5, 0.75, 40.625), (1.0, 2.5, None),
                                      (3.0, 4.0, None)]),
        (counted(100.0, None, 300.0), 0.5, 1.5, 100.0),  # a gap is bridged by its neighbours
        (counted(900.0, 10.0), 0.0, 1.0, None),  # a counter that began anew is not believed
        ([Reading(0.0, energy_j=900.0, power_w=50.0), Reading(1.0, energy_j=10.0, power_w=70.0)], 0.0, 1.0, 60.0),
    ],
)  # fmt: skip
def test_energy_is_the_counter_s_difference_or_power_over_time(
    readings: list[Reading], begin_s: float, end_s: float, joules: float | None
) -> None:
    assert energy_j(readings, begin_s, end_s) == joules


# --- throttle reasons ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        (0x113, []),  # idle, clocks that somebody set, and other bits that slow nothing down
        (0x200, []),  # a reason that a newer driver knows
        (0x004, ["power cap"]),
        (0x048, ["hardware slowdown", "thermal slowdown by the hardware"]),
        (0x1FF, ["power cap", "hardware slowdown", "thermal slowdown by the driver",
                 "thermal slowdown by the hardware", "power brake"]),
    ],
)  # fmt: skip
def test_only_what_slows_the_device_is_a_throttle(mask: int, names: list[str]) -> None:
    found = window(Reading(1.0, reasons=mask), begin_s=0.5, end_s=1.5)
    assert (found.throttled, found.throttled_readings) == (names, int(bool(names)))


# --- windows ------------------------------------------------------------------------------------------------------


def test_a_window_holds_what_was_read_within_it() -> None:
    readings = [
        Reading(0.0, utilisation=0.1, memory_bytes=99, sm_clock_mhz=300, temperature_c=90, reasons=0x40, took_s=9.0),
        Reading(1.0, 0.8, 5, 100.0, 1000.0, 1500, 2600, 60, 0x001, took_s=0.001),
        Reading(2.0, 0.9, 7, 200.0, 1150.0, 1400, 2600, 66, 0x004, took_s=0.003),
        Reading(3.0, 1.0, 6, 300.0, 1400.0, 1000, 2600, 64, 0x000, took_s=0.002),
        Reading(4.0, utilisation=0.0, memory_bytes=99, sm_clock_mhz=300, temperature_c=90, reasons=0x08, took_s=9.0),
    ]
    assert window(*readings, begin_s=0.5, end_s=3.0) == Window(
        device="GPU-7",
        seconds=2.5,
        readings=2,
        utilisation=pytest.approx(0.85),
        memory_peak_bytes=7,
        energy_j=None,  # the first counted second is the first
        sm_clock_mhz=1450,
        memory_clock_mhz=2600,
        temperature_max_c=66,
        throttled=["power cap"],
        throttled_readings=1,
        sampling_s=pytest.approx(0.004),
    )


def test_a_window_too_short_for_a_reading_has_its_neighbours() -> None:
    readings = [Reading(1.0, 0.8, energy_j=100.0, reasons=0x004), Reading(2.0, 0.6, energy_j=200.0, reasons=0x000)]
    found = window(*readings, begin_s=1.25, end_s=1.5)
    assert (found.readings, found.utilisation, found.energy_j, found.throttled) == (2, 0.7, 25.0, ["power cap"])
    assert found.sampling_s == 0


def test_what_the_device_never_said_is_none() -> None:
    assert window(Reading(1.0), begin_s=0.5, end_s=1.5) == Window(
        "GPU-7", 1.0, 1, None, None, None, None, None, None, [], None, 0
    )


@pytest.mark.parametrize(("begin_s", "end_s"), [(1.0, 1.0), (2.0, 1.0)])
def test_no_window_without_time_or_readings(begin_s: float, end_s: float) -> None:
    assert within("GPU-7", [Reading(1.0)], begin_s, end_s) is None
    assert within("GPU-7", [], 0.0, 1.0) is None


# --- reading ------------------------------------------------------------------------------------------------------


def test_a_reading_has_everything_in_base_units() -> None:
    one = sampler(whole(), [5.0])
    assert one.read()
    assert list(one._readings) == [Reading(5.0, 0.8, 3 * 1024**3, 250.0, 1000.0, 1500, 2600, 61, 0, took_s=0.25)]
    assert one.failure is None


@pytest.mark.parametrize("refusal", ["NotSupported", "NoPermission", "FunctionNotFound"])
def test_what_is_not_supported_is_asked_once(refusal: str) -> None:
    no = getattr(FakeNvml, f"NVMLError_{refusal}")
    nvml = whole(nvmlDeviceGetTotalEnergyConsumption=no, nvmlDeviceGetTemperature=no)
    one = sampler(nvml)
    assert [one.read() for _ in range(3)] == [True] * 3
    assert nvml.calls["nvmlDeviceGetTotalEnergyConsumption"] == 1
    assert nvml.calls["nvmlDeviceGetPowerUsage"] == 3
    found = one.window(0.0, 2.0)
    assert (found.temperature_max_c, found.energy_j) == (None, 500.0)  # 250 W for 2 s


def test_what_fails_once_is_asked_again() -> None:
    tries = iter([True, False])

    def temperature(handle: str, sensor: int) -> int:
        if next(tries):
            raise FakeNvml.NVMLError_Timeout
        return 61

    one = sampler(whole(nvmlDeviceGetTemperature=temperature))
    assert [one.read(), one.read()] == [True, True]
    assert [reading.temperature_c for reading in one._readings] == [None, 61]


def test_a_device_that_is_lost_ends_the_sampling_and_keeps_what_was_read() -> None:
    nvml = whole()
    one = sampler(nvml)
    assert [one.read(), one.read()] == [True, True]
    nvml.answers["nvmlDeviceGetPowerUsage"] = FakeNvml.NVMLError_GpuIsLost
    assert not one.read()
    assert one.failure == "GPU is lost, after 2 readings"
    found = one.window(0.0, 1.5)
    assert (found.readings, found.memory_peak_bytes) == (2, 3 * 1024**3)


@pytest.mark.parametrize(
    ("nvml", "reason"),
    [
        (FakeNvml(), "this GPU supports none of the counters"),
        (whole(nvmlDeviceGetMemoryInfo=ZeroDivisionError), "ZeroDivisionError"),
    ],
)
def test_no_error_of_any_kind_passes_through(nvml: FakeNvml, reason: str) -> None:
    one = sampler(nvml)
    assert not one.read()
    assert one.failure == f"{reason}, after 0 readings"


@pytest.mark.parametrize("newer", [{}, {"nvmlDeviceGetCurrentClocksEventReasons": FakeNvml.NVMLError_FunctionNotFound}])
def test_an_older_module_or_driver_calls_reasons_by_their_old_name(newer: dict[str, Any]) -> None:
    nvml = whole(nvmlDeviceGetCurrentClocksThrottleReasons=0x40)
    del nvml.answers["nvmlDeviceGetCurrentClocksEventReasons"]
    nvml.answers |= newer
    one = sampler(nvml)
    one.read()
    assert [reading.reasons for reading in one._readings] == [0x40]


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.0001, 0.1), (0.005, 1.0), (0.25, 50.0)])
def test_readings_take_half_a_percent_of_the_time_at_most(took_s: float, pause_s: float) -> None:
    ticks = iter((5.0, 5.0 + took_s))
    one = Sampler(whole(), "handle", "GPU-7", clock=lambda: next(ticks))
    assert one.read()
    assert one.pause_s == pytest.approx(pause_s)


# --- the thread ---------------------------------------------------------------------------------------------------


def test_a_rank_that_asks_gets_a_reading_of_after_its_window() -> None:
    one = Sampler(whole(), "handle", "GPU-7", interval_s=3600.0)
    one.start()
    end_s = one._clock()
    found = one.window(end_s - 1.0, end_s)
    one.stop()
    assert found is not None
    assert one._readings[-1].at_s >= end_s
    assert not one._thread.is_alive()


def test_a_driver_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "PATIENCE_S", 0.05)
    asked, answers = threading.Event(), threading.Event()

    def power(handle: str) -> int:
        asked.set()
        answers.wait(60)
        return 0

    one = Sampler(whole(nvmlDeviceGetPowerUsage=power), "handle", "GPU-7")
    one.start()
    assert asked.wait(60)
    assert one.window(0.0, 1.0) is None
    one.stop()
    assert one._thread.is_alive()
    answers.set()
    one._thread.join(60)
    assert not one._thread.is_alive()


def test_a_lost_device_ends_the_thread() -> None:
    one = Sampler(whole(nvmlDeviceGetPowerUsage=FakeNvml.NVMLError_GpuIsLost), "handle", "GPU-7")
    one.start()
    one._thread.join(60)
    assert one.window(0.0, 1.0) is None
    assert one.failure == "GPU is lost, after 0 readings"


# --- finding NVML and the device ----------------------------------------------------------------------------------


def finder(*known: str) -> FakeNvml:
    def find(name: str) -> str:
        if name in known:
            return f"handle of {name}"
        raise FakeNvml.NVMLError_NotFound

    return FakeNvml(nvmlDeviceGetHandleByUUID=find, nvmlDeviceGetHandleByPciBusId=find)


@pytest.mark.parametrize("name", ["GPU-1a2b", "MIG-1a2b", "00000000:3b:00.0"])
def test_the_device_is_found_by_its_names(name: str) -> None:
    assert find_device(finder(name, "GPU-0000"), "1a2b", "00000000:3b:00.0") == f"handle of {name}"


def test_a_device_that_nvml_does_not_know_has_no_counters() -> None:
    with pytest.raises(NotAvailable, match=r"^NVML does not know the GPU \(Not Found\)$"):
        find_device(finder(), "1a2b", "00000000:3b:00.0")
    with pytest.raises(NotAvailable, match="torch says neither its UUID nor its PCI bus id"):
        find_device(finder(), None, None)


@pytest.mark.parametrize(
    ("pynvml", "reason"),
    [
        (None, r"nvidia-ml-py is not installed \(pip install nvidia-ml-py\)"),
        (FakeNvml(nvmlInit=FakeNvml.NVMLError_DriverNotLoaded), r"^NVML did not start \(Driver Not Loaded\)$"),
    ],
)
def test_without_package_or_driver_there_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, pynvml: FakeNvml | None, reason: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", pynvml)
    with pytest.raises(NotAvailable, match=reason):
        load_nvml()


def test_the_names_that_are_used_are_the_module_s() -> None:
    pynvml = pytest.importorskip("pynvml")
    source = inspect.getsource(gpu)
    names = {*re.findall(r"nvml\.((?:NVML|nvml)\w+)", source), *re.findall(r'"(nvmlDevice\w+[a-z])"', source)}
    names |= {f"nvmlDeviceGet{question}" for question in re.findall(r'said\("([A-Z]\w+)"', source)}
    assert len(names) > 20
    assert [name for name in sorted(names) if not hasattr(pynvml, name)] == []
    assert pynvml.nvmlClocksEventReasonSwPowerCap == 0x4
    assert pynvml.nvmlClocksEventReasonSwThermalSlowdown == 0x20


# --- which GPUs there are, and what joins them ---------------------------------------------------------------------


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
    lost = machine(nvmlDeviceGetHandleByIndex=FakeNvml.NVMLError_GpuIsLost, nvmlDeviceGetCount=1)
    assert list_gpus(lost) == [Gpu(index=0, name="a GPU that does not answer")]
    assert list_links(lost, 2) == []


def test_an_older_module_answers_in_bytes_and_without_newer_functions() -> None:
    nvml = machine(nvmlDeviceGetName=b"Tesla V100", nvmlSystemGetDriverVersion=b"470.1")
    del nvml.answers["nvmlDeviceGetMigMode"]
    assert list_gpus(nvml)[0].name == "Tesla V100"
    assert driver_versions(nvml) == {"driver": "470.1", "driver_cuda": "13.2"}


@pytest.mark.parametrize(
    ("status", "shared", "path"),
    [
        (0, 50, "NVLink"),
        (1, 50, "the link between processors"),
        (FakeNvml.NVMLError_NotSupported, 30, "a PCIe host bridge"),
        (FakeNvml.NVMLError_NotSupported, FakeNvml.NVMLError_NotSupported, None),
    ],
)
def test_two_gpus_are_joined_by_the_best_there_is(status: Any, shared: Any, path: str | None) -> None:
    nvml = machine(nvmlDeviceGetP2PStatus=status, nvmlDeviceGetTopologyCommonAncestor=shared)
    assert list_links(nvml, 2) == ([GpuLink(one=0, other=1, path=path)] if path is not None else [])
    assert list_links(nvml, 1) == []
