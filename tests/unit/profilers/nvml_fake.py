"""An NVML module whose answers are written down: a value, an error to raise, or a function of the arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As nvidia-ml-py has them: one base, one class an error code."""


def error(name: str, text: str) -> type[NVMLError]:
    return type(f"NVMLError_{name}", (NVMLError,), {"__str__": lambda self: text})


class FakeNvml:
    """`FakeNvml(nvmlDeviceGetPowerUsage=250_000)`; a function that is not named does not exist in this module."""

    NVMLError = NVMLError
    NVMLError_GpuIsLost = error("GpuIsLost", "GPU is lost")
    NVMLError_ResetRequired = error("ResetRequired", "GPU requires restart")
    NVMLError_Uninitialized = error("Uninitialized", "Uninitialized")
    NVMLError_DriverNotLoaded = error("DriverNotLoaded", "Driver Not Loaded")
    NVMLError_NotSupported = error("NotSupported", "Not Supported")
    NVMLError_NoPermission = error("NoPermission", "Insufficient Permissions")
    NVMLError_FunctionNotFound = error("FunctionNotFound", "Function Not Found")
    NVMLError_NotFound = error("NotFound", "Not Found")
    NVMLError_Timeout = error("Timeout", "Timeout")
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0
    NVML_NVLINK_MAX_LINKS = 4

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self.__dict__["answers"]:
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self.calls[name] += 1
            answer = self.answers[name]
            if isinstance(answer, type) and issubclass(answer, BaseException):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return call


def whole(**changes: Any) -> FakeNvml:
    """A GPU that answers everything: 80 % busy, 3 GiB, 250 W, 1000 J so far, 1.5 and 2.6 GHz, 61 °C, unthrottled."""
    answers = {
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=80, memory=30),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=3 * 1024**3, total=8 * 1024**3),
        "nvmlDeviceGetPowerUsage": 250_000,
        "nvmlDeviceGetTotalEnergyConsumption": 1_000_000,
        "nvmlDeviceGetClockInfo": lambda handle, clock: {1: 1500, 2: 2600}[clock],
        "nvmlDeviceGetTemperature": lambda handle, sensor: 61,
        "nvmlDeviceGetCurrentClocksEventReasons": 0,
    }
    return FakeNvml(**answers | changes)
