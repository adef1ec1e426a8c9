"""GPU counters from a fake NVML, exactly: energies, throttles, what is not supported, a device that is lost."""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from nvml_fake import FakeNvml, whole

from xbench.profilers import gpu, gpu_list
from xbench.profilers.gpu import (
    REASONS,
    NotAvailable,
    Reading,
    Sampler,
    Window,
    energy_j,
    find_device,
    harm,
    load_nvml,
    within,
)


def sampler(nvml: FakeNvml, times: list[float] | None = None) -> Sampler:
    """A sampler without a thread; each reading looks at the clock twice, and takes a quarter of a second."""
    ticks: Iterator[float] = iter(tick for time in times or range(100) for tick in (float(time), time + 0.25))
    return Sampler(nvml, "handle", "GPU-7", clock=lambda: next(ticks))


def counted(*energies: float | None) -> list[Reading]:
    return [Reading(float(second), energy_j=energy) for second, energy in enumerate(energies)]


def drawn(*powers: float | None) -> list[Reading]:
    return [Reading(float(second), power_w=power) for second, power in enumerate(powers)]


# --- energy -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begin_s", "end_s", "joules"),
    [(0.0, 3.0, 400.0), (1.0, 2.0, 150.0), (0.5, 2.5, 275.0), (1.25, 1.5, 37.5), (-0.1, 2.0, None), (2.0, 3.1, None)],
)
def test_energy_is_the_counter_s_difference_on_straight_lines(
    begin_s: float, end_s: float, joules: float | None
) -> None:
    assert energy_j(counted(100.0, 200.0, 350.0, 500.0), begin_s, end_s) == joules


@pytest.mark.parametrize(
    ("begin_s", "end_s", "joules"),
    [(0.0, 2.0, 350.0), (0.5, 1.5, 187.5), (0.5, 0.75, 40.625), (1.0, 2.5, None), (3.0, 4.0, None)],
)
def test_without_a_counter_energy_is_power_over_time(begin_s: float, end_s: float, joules: float | None) -> None:
    assert energy_j(drawn(100.0, 200.0, 200.0), begin_s, end_s) == joules


def test_readings_without_the_counter_are_bridged_by_their_neighbours() -> None:
    assert energy_j(counted(100.0, None, 300.0), 0.5, 1.5) == 100.0


def test_a_counter_that_began_anew_is_not_believed() -> None:
    readings = [Reading(0.0, energy_j=900.0, power_w=50.0), Reading(1.0, energy_j=10.0, power_w=70.0)]
    assert energy_j(readings, 0.0, 1.0) == 60.0
    assert energy_j(counted(900.0, 10.0), 0.0, 1.0) is None


# --- throttle reasons ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        (0x000, []),
        (0x001, []),  # idle
        (0x002, []),  # clocks that somebody set
        (0x010, []),
        (0x100, []),
        (0x004, ["power cap"]),
        (0x008, ["hardware slowdown"]),
        (0x020, ["thermal slowdown by the driver"]),
        (0x040, ["thermal slowdown by the hardware"]),
        (0x080, ["power brake"]),
        (0x1FF, ["power cap", "hardware slowdown", "thermal slowdown by the driver",
                 "thermal slowdown by the hardware", "power brake"]),
        (0x200, []),  # a reason that a newer driver knows
    ],
)  # fmt: skip
def test_only_what_slows_the_device_is_harm(mask: int, names: list[str]) -> None:
    assert harm(mask) == names


def test_every_bit_has_a_name() -> None:
    assert list(REASONS) == [1 << bit for bit in range(9)]


# --- windows ------------------------------------------------------------------------------------------------------


def test_a_window_holds_what_was_read_within_it() -> None:
    readings = [
        Reading(0.0, utilisation=0.1, memory_bytes=99, sm_clock_mhz=300, temperature_c=90, reasons=0x40, took_s=9.0),
        Reading(1.0, 0.8, 5, 100.0, 1000.0, 1500, 2600, 60, 0x001, took_s=0.001),
        Reading(2.0, 0.9, 7, 200.0, 1150.0, 1400, 2600, 66, 0x004, took_s=0.003),
        Reading(3.0, 1.0, 6, 300.0, 1400.0, 1000, 2600, 64, 0x000, took_s=0.002),
        Reading(4.0, utilisation=0.0, memory_bytes=99, sm_clock_mhz=300, temperature_c=90, reasons=0x08, took_s=9.0),
    ]
    assert within("GPU-7", readings, 1.0, 3.5) is not None
    assert within("GPU-7", readings, 0.5, 3.0) == Window(
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
    found = within("GPU-7", readings, 1.25, 1.5)
    assert found is not None
    assert (found.readings, found.utilisation, found.energy_j, found.throttled) == (2, 0.7, 25.0, ["power cap"])
    assert found.sampling_s == 0


def test_what_the_device_never_said_is_none() -> None:
    found = within("GPU-7", [Reading(1.0)], 0.5, 1.5)
    assert found == Window("GPU-7", 1.0, 1, None, None, None, None, None, None, [], None, 0)


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
    assert found is not None
    assert (found.temperature_max_c, found.energy_j) == (None, 500.0)  # 250 W for 2 s


def test_what_fails_once_is_asked_again() -> None:
    answers = iter([FakeNvml.NVMLError_Timeout(), 61])

    def temperature(handle: str, sensor: int) -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    one = sampler(whole(nvmlDeviceGetTemperature=temperature))
    one.read()
    one.read()
    assert [reading.temperature_c for reading in one._readings] == [None, 61]


def test_a_device_that_is_lost_ends_the_sampling_and_keeps_what_was_read() -> None:
    nvml = whole()
    one = sampler(nvml)
    assert [one.read(), one.read()] == [True, True]
    nvml.answers["nvmlDeviceGetPowerUsage"] = FakeNvml.NVMLError_GpuIsLost
    assert not one.read()
    assert one.failure == "GPU is lost, after 2 readings"
    found = one.window(0.0, 1.5)
    assert found is not None
    assert (found.readings, found.memory_peak_bytes) == (2, 3 * 1024**3)


def test_a_device_that_supports_nothing_says_so() -> None:
    one = sampler(FakeNvml())
    assert not one.read()
    assert one.failure == "this GPU supports none of the counters, after 0 readings"


def test_no_error_of_any_kind_passes_through() -> None:
    one = sampler(whole(nvmlDeviceGetMemoryInfo=ZeroDivisionError))
    assert not one.read()
    assert one.failure == "ZeroDivisionError, after 0 readings"


@pytest.mark.parametrize("newer", [{}, {"nvmlDeviceGetCurrentClocksEventReasons": FakeNvml.NVMLError_FunctionNotFound}])
def test_an_older_module_or_driver_calls_reasons_by_their_old_name(newer: dict[str, Any]) -> None:
    nvml = whole(nvmlDeviceGetCurrentClocksThrottleReasons=0x40)
    del nvml.answers["nvmlDeviceGetCurrentClocksEventReasons"]
    nvml.answers |= newer
    one = sampler(nvml)
    one.read()
    assert [reading.reasons for reading in one._readings] == [0x40]


# --- the thread ---------------------------------------------------------------------------------------------------


def test_a_rank_that_asks_gets_a_reading_of_after_its_window() -> None:
    one = Sampler(whole(), "handle", "GPU-7", interval_s=3600.0)
    one.start()
    end_s = one._clock()
    found = one.window(end_s - 1.0, end_s)
    one.stop()
    assert found is not None
    assert one._readings[-1].at_s >= end_s
    assert one._thread is not None
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
    assert one._thread is not None
    assert one._thread.is_alive()
    answers.set()
    one._thread.join(60)
    assert not one._thread.is_alive()


def test_a_lost_device_ends_the_thread() -> None:
    one = Sampler(whole(nvmlDeviceGetPowerUsage=FakeNvml.NVMLError_GpuIsLost), "handle", "GPU-7")
    one.start()
    assert one._thread is not None
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


def test_without_the_package_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NotAvailable, match=r"nvidia-ml-py is not installed \(pip install nvidia-ml-py\)"):
        load_nvml()


def test_without_a_driver_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(nvmlInit=FakeNvml.NVMLError_DriverNotLoaded))
    with pytest.raises(NotAvailable, match=r"^NVML did not start \(Driver Not Loaded\)$"):
        load_nvml()


def test_the_names_that_are_used_are_the_module_s() -> None:
    pynvml = pytest.importorskip("pynvml")
    for module in (gpu, gpu_list):
        source = inspect.getsource(module)
        names = {*re.findall(r"nvml\.((?:NVML|nvml)\w+)", source), *re.findall(r'"(nvmlDevice\w+[a-z])"', source)}
        names |= {f"nvmlDeviceGet{question}" for question in re.findall(r'said\("([A-Z]\w+)"', source)}
        assert names
        assert [name for name in sorted(names) if not hasattr(pynvml, name)] == []
    for bit, name in ((0x4, "SwPowerCap"), (0x20, "SwThermalSlowdown")):
        assert getattr(pynvml, f"nvmlClocksEventReason{name}") == bit
