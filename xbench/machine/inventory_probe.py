"""Probe of torch or NVML: `python -m xbench.machine.inventory_probe torch|nvml`.

Each runs in a process of its own, because either can crash or hang on a broken driver, and `xbench env` must still
answer. It writes one JSON object to stdout, which `machine.inventory` reads.

| argument | answer |
| --- | --- |
| torch | torch, torchvision, nccl, cuda (versions; null: not built with it), device, gpus, gpu_names |
| nvml | driver, driver_cuda, gpus (`records.parts.Gpu`), links (`records.parts.GpuLink`) |
| either | instead of all that: problem, one sentence; and installed, whether its package is installed |
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

from xbench.profilers.gpu import NotAvailable, driver_versions, list_gpus, list_links, load_nvml
from xbench.workloads.probe import answer_alone

PACKAGES = {"torch": "torch", "nvml": "pynvml"}


def respond(what: str) -> dict[str, Any]:
    """The answer; an error becomes part of it."""
    try:
        return torch_answer() if what == "torch" else nvml_answer(load_nvml())
    except NotAvailable as error:
        return {"problem": str(error), "installed": installed(what)}
    except Exception as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())
        return {"problem": told[:300], "installed": installed(what)}


def installed(what: str) -> bool:
    """True if the package is installed, even if it does not work."""
    return find_spec(PACKAGES[what]) is not None


def torch_answer() -> dict[str, Any]:
    """Return torch's versions, and the GPUs that it can use."""
    import torch

    from xbench.workloads.preflight import choose_device, software

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [torch.cuda.get_device_name(index) for index in range(gpus)]
    return {**software(), "device": choose_device("auto", names), "gpus": gpus, "gpu_names": names}


def nvml_answer(nvml: Any) -> dict[str, Any]:
    """Return the GPUs that the driver lists, and the links between them."""
    gpus = list_gpus(nvml)
    return {
        **driver_versions(nvml),
        "gpus": [gpu.model_dump() for gpu in gpus],
        "links": [link.model_dump() for link in list_links(nvml, len(gpus))],
    }


if __name__ == "__main__":
    answer_alone(lambda: respond(sys.argv[1]))
