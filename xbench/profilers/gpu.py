"""What NVML reports: counters of a GPU during timed steps, read by a separate thread, and all GPUs and their links.

A hot or power-capped device computes more slowly, and two modes timed under different conditions do not compare. So
every rank on a GPU reads the counters every `INTERVAL_S`. No reading is part of the timed loop: after a block, the rank
takes the readings of its time from `Sampler.window`. All counters are of the whole device, for all its processes.

- **Energy** between two instants is the difference of the device's own counter (Volta and later), interpolated linearly
  between readings. Without that counter it is the power, integrated over the readings by trapezoids. Both change about
  every tenth of a second, so short windows are imprecise.
- **Utilisation** is the share of time in which any kernel ran, as the driver measures it over 1/6 to 1 s.

No failure here may end a run. A counter that a device does not support stays None. A lost device ends the sampling with
a reason, and earlier readings stay. A driver that hangs blocks only this thread.

NVML (the module `pynvml` of the package nvidia-ml-py) is always a parameter, so tests use their own and expect exact
numbers. This module imports no torch. `python -m xbench.profilers.gpu` writes what NVML says about the machine, as
`facts` returns it; a driver may crash or hang, so `environment` asks in a process.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

from xbench.records.parts import Gpu, GpuLink
from xbench.workloads.probe import answer_alone

INTERVAL_S = 0.1
"""Least time [s] between two readings. Some drivers answer in one millisecond, others in five."""

SHARE = 0.005
"""Largest share of the time that readings take: after a slow one the next is later."""

MAX_READINGS = 36_000
"""Maximum number of readings, an hour of them; the oldest are dropped first."""

PATIENCE_S = 1.0
"""Longest wait [s] for a last reading."""

THROTTLES: dict[int, str] = {
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x020: "thermal slowdown by the driver",
    0x040: "thermal slowdown by the hardware",
    0x080: "power brake",
}
"""Names of those of NVML's nvmlClocksEventReason… bits that mean that the device computed more slowly than it can.

The other bits are harmless, such as those of an idle GPU and of clocks set by the user.
"""


class NotAvailable(Exception):
    """NVML, or the GPU in it, is not available; the message gives the reason as half a sentence."""


@dataclass(frozen=True)
class Reading:
    """All counters at one instant; None: not available on the device."""

    at_s: float
    utilisation: float | None = None
    memory_bytes: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    reasons: int | None = None
    took_s: float = 0.0


@dataclass(frozen=True)
class Window:
    """Summary of the readings of one device within `seconds`."""

    device: str
    seconds: float
    readings: int
    utilisation: float | None
    memory_peak_bytes: int | None
    energy_j: float | None
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    temperature_max_c: float | None
    throttled: list[str]
    throttled_readings: int | None
    sampling_s: float


def _reasons(nvml: Any, handle: Any) -> int:
    try:
        mask: int = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except (AttributeError, nvml.NVMLError_FunctionNotFound):  # a module, or a driver, from before the renaming
        mask = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return mask


QUANTITIES: dict[str, Callable[[Any, Any], Any]] = {
    "utilisation": lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
    "memory_bytes": lambda nvml, handle: nvml.nvmlDeviceGetMemoryInfo(handle).used,
    "power_w": lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    "energy_j": lambda nvml, handle: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
    "sm_clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
    "temperature_c": lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
    "reasons": _reasons,
}


class Sampler:
    """Periodic readings of one GPU's counters, in a thread between `start` and `stop`.

    `device` is the name in windows. `failure` is the reason if the thread ended by itself.
    """

    def __init__(
        self,
        nvml: Any,
        handle: Any,
        device: str,
        *,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.device = device
        self.failure: str | None = None
        self._nvml = nvml
        self._handle = handle
        self._interval_s = interval_s
        self._clock = clock
        self._quantities = dict(QUANTITIES)
        self._lost = (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired, nvml.NVMLError_Uninitialized,
                      nvml.NVMLError_DriverNotLoaded)  # fmt: skip
        self._never = (nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission, nvml.NVMLError_FunctionNotFound,
                       AttributeError)  # fmt: skip
        self._readings: deque[Reading] = deque(maxlen=MAX_READINGS)
        self._changed = threading.Condition()
        self._wanted_s = -math.inf
        self._over = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the readings, in a thread that does not keep the process alive."""
        self._thread = threading.Thread(target=self._run, name="xbench-nvml", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the readings. Waits a moment for the thread, but not for a driver that hangs."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        while self.read():
            with self._changed:
                self._changed.wait_for(lambda: self._over or not self._reaches(self._wanted_s), self.pause_s)
                if self._over:
                    return

    @property
    def pause_s(self) -> float:
        """Time [s] until the next reading: longer after a slow one."""
        return max(self._interval_s, self._readings[-1].took_s / SHARE)

    def read(self) -> bool:
        """Take one reading now; False when no more can follow."""
        at_s = self._clock()
        try:
            values = self._values()
        except Exception as error:  # no error may end a run
            self.failure = f"{str(error) or type(error).__name__}, after {len(self._readings)} readings"
            values = None
        with self._changed:
            if values is None:
                self._over = True
            else:
                self._readings.append(Reading(at_s, **values, took_s=self._clock() - at_s))
            self._changed.notify_all()
            return not self._over

    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, ask in list(self._quantities.items()):
            try:
                values[name] = ask(self._nvml, self._handle)
            except self._lost:
                raise
            except self._never:
                del self._quantities[name]
            except self._nvml.NVMLError:
                pass  # not available this time
        if not self._quantities:
            raise NotAvailable("this GPU supports none of the counters")
        return values

    def window(self, begin_s: float, end_s: float) -> Window | None:
        """The readings between two instants of the sampler's clock; None before the first reading.

        While the thread runs, the call requests one more reading and waits a moment for it.
        """
        with self._changed:
            if self._thread is not None and not self._over:
                self._wanted_s = min(end_s, self._clock())
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._over or self._reaches(self._wanted_s), PATIENCE_S)
            readings = list(self._readings)
        return within(self.device, readings, begin_s, end_s)

    def _reaches(self, time_s: float) -> bool:
        return bool(self._readings) and self._readings[-1].at_s >= time_s


def within(device: str, readings: Sequence[Reading], begin_s: float, end_s: float) -> Window | None:
    """The window from `begin_s` to `end_s`; a short one uses neighbouring readings. None without readings."""
    if not readings or end_s <= begin_s:
        return None
    times = [reading.at_s for reading in readings]
    first, last = bisect_left(times, begin_s), bisect_left(times, end_s)
    inside = list(readings[first:last]) or list(readings[max(0, first - 1) : first + 1])
    masks = [reading.reasons for reading in inside if reading.reasons is not None]
    return Window(
        device=device,
        seconds=end_s - begin_s,
        readings=len(inside),
        utilisation=median_of_known(reading.utilisation for reading in inside),
        memory_peak_bytes=max((r.memory_bytes for r in inside if r.memory_bytes is not None), default=None),
        energy_j=energy_j(readings, begin_s, end_s),
        sm_clock_mhz=median_of_known(reading.sm_clock_mhz for reading in inside),
        memory_clock_mhz=median_of_known(reading.memory_clock_mhz for reading in inside),
        temperature_max_c=max((r.temperature_c for r in inside if r.temperature_c is not None), default=None),
        throttled=[name for bit, name in THROTTLES.items() if any(mask & bit for mask in masks)],
        throttled_readings=sum(bool(mask & sum(THROTTLES)) for mask in masks) if masks else None,
        sampling_s=sum(reading.took_s for reading in readings[first:last]),
    )


def energy_j(readings: Sequence[Reading], begin_s: float, end_s: float) -> float | None:
    """Energy [J] between two instants, by the device's counter, else by its power; None outside the readings."""
    counted = [(reading.at_s, reading.energy_j) for reading in readings if reading.energy_j is not None]
    before, after = _at(counted, begin_s), _at(counted, end_s)
    if before is not None and after is not None and after >= before:  # a restarted driver counts from zero
        return after - before
    drawn = [(reading.at_s, reading.power_w) for reading in readings if reading.power_w is not None]
    before, after = _at(drawn, begin_s), _at(drawn, end_s)
    if before is None or after is None:
        return None
    line = [(begin_s, before), *(point for point in drawn if begin_s < point[0] < end_s), (end_s, after)]
    return sum((t1 - t0) * (w0 + w1) / 2 for (t0, w0), (t1, w1) in pairwise(line))


def _at(points: Sequence[tuple[float, float]], time_s: float) -> float | None:
    """Linear interpolation at an instant between points in order of time; None outside them."""
    place = bisect_left(points, time_s, key=lambda point: point[0])
    if place < len(points) and points[place][0] == time_s:
        return points[place][1]
    if place in (0, len(points)):
        return None
    (t0, v0), (t1, v1) = points[place - 1], points[place]
    return v0 + (v1 - v0) * (time_s - t0) / (t1 - t0)


def median_of_known(values: Iterable[float | None]) -> float | None:
    """The median of the known values; None without any."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def load_nvml() -> Any:
    """The NVML module, initialised. Raises NotAvailable."""
    try:
        import pynvml
    except ImportError:
        raise NotAvailable("the Python package nvidia-ml-py is not installed (pip install nvidia-ml-py)") from None
    try:
        pynvml.nvmlInit()
    except Exception as error:
        raise NotAvailable(f"NVML did not start ({str(error) or type(error).__name__})") from None
    return pynvml


def find_device(nvml: Any, uuid: str | None, pci_bus_id: str | None) -> Any:
    """NVML's handle of the GPU with this UUID or PCI bus id ('00000000:3b:00.0') in CUDA.

    Numbers are not used: CUDA_VISIBLE_DEVICES changes them. Raises NotAvailable.
    """
    tries = [(nvml.nvmlDeviceGetHandleByUUID, f"{kind}-{uuid}") for kind in ("GPU", "MIG") if uuid is not None]
    if pci_bus_id is not None:
        tries.append((nvml.nvmlDeviceGetHandleByPciBusId, pci_bus_id))
    reason = "torch says neither its UUID nor its PCI bus id"
    for find, name in tries:
        try:
            return find(name)
        except nvml.NVMLError as error:
            reason = str(error)
    raise NotAvailable(f"NVML does not know the GPU ({reason})")


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
    paths = ((one, other, _path(nvml, handles[one], handles[other])) for one, other in combinations(range(gpus), 2))
    return [GpuLink(one=one, other=other, path=path) for one, other, path in paths if path is not None]


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
    return sum(map(bool, known)) if known else None


def _path(nvml: Any, one: Any, other: Any) -> str | None:
    if one is None or other is None:
        return None
    joined = _said(nvml, "nvmlDeviceGetP2PStatus", one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
    if joined == nvml.NVML_P2P_STATUS_OK:  # a number, so None is not it
        return "NVLink"
    return PATHS.get(_said(nvml, "nvmlDeviceGetTopologyCommonAncestor", one, other))


def _said(nvml: Any, question: str, *arguments: Any) -> Any:
    """NVML's answer, or None where the module, driver or GPU has none."""
    try:
        return getattr(nvml, question)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def _text(value: Any) -> str | None:
    """Decode bytes, which older versions of the module return."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def facts() -> dict[str, Any]:
    """Return `driver`, `driver_cuda`, `gpus` and `links` as JSON; or a `problem`, one sentence."""
    try:
        nvml = load_nvml()
        gpus = list_gpus(nvml)
        links = list_links(nvml, len(gpus))
        return driver_versions(nvml) | {
            "gpus": [gpu.model_dump() for gpu in gpus], "links": [link.model_dump() for link in links]
        }  # fmt: skip
    except Exception as error:
        told = " ".join(str(error).split()) or type(error).__name__
        return {"problem": told[:300]}


if __name__ == "__main__":
    answer_alone(facts)
