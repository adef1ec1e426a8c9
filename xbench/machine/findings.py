"""Findings about a machine: what works and what is missing, as a pure function of the inventory's observations.

Each missing item has its cost and, if there is one, the command that installs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xbench.records.parts import Finding

NVIDIA = "from NVIDIA's repository"
NAMESPACES = (
    "run xbench as root, or: sysctl -w user.max_user_namespaces=15000 kernel.apparmor_restrict_unprivileged_userns=0"
)


EXTRAS = {
    "Horovod": ("mode horovod and --backend horovod cannot be used", "make horovod"),
    "scikit-learn": ("converge has no data to train on", "pip install scikit-learn"),
    "Ray": ("cluster run --engine ray cannot be used", "pip install ray"),
}
"""Optional packages: the cost of their absence, and the command that installs them."""


@dataclass(frozen=True)
class Seen:
    """Observations of the inventory. `torch` and `nvml` are the answers of `inventory_probe`."""

    torch: Mapping[str, Any]
    nvml: Mapping[str, Any]
    driver: str | None = None
    shaped_problem: str | None = None
    iproute2: bool = True
    root: bool = True
    cores: int = 1
    governor: str | None = None
    noise: Sequence[str] = ()
    tools: Mapping[str, str | None] = field(default_factory=dict)
    """Version and path of 'nvcc', path of 'nsys' ('13.2, /usr/local/cuda/bin/nvcc'), or None."""

    extras: Mapping[str, str | None] = field(default_factory=dict)
    """Version, or None, of each optional package of `EXTRAS`; Horovod's is None if unusable."""

    @property
    def gpus(self) -> int:
        """Number of GPUs that training can use."""
        return int(self.torch.get("gpus", 0))

    @property
    def has_gpu(self) -> bool:
        """True if there is any sign of an NVIDIA GPU."""
        return bool(self.gpus or self.nvml.get("gpus") or self.driver)


def findings(seen: Seen) -> list[Finding]:
    """Return all findings, the most important first."""
    return [
        _torch(seen),
        _torchvision(seen),
        _gpus(seen),
        _shaped(seen),
        _cores(seen),
        _counters(seen),
        _nvcc(seen),
        _nsight(seen),
        *(_extra(name, version) for name, version in seen.extras.items()),
        _governor(seen),
        _quiet(seen),
    ]


def _torch(seen: Seen) -> Finding:
    problem = seen.torch.get("problem")
    if problem is None:
        cuda, nccl = seen.torch.get("cuda"), seen.torch.get("nccl")
        built = f"built for CUDA {cuda}" + (f" with NCCL {nccl}" if nccl else "") if cuda else "built for CPUs"
        return _works("torch", f"{seen.torch.get('torch')}, {built}")
    there = bool(seen.torch.get("installed"))
    return _missing(
        "torch",
        f"it is installed and does not work: {problem}" if there else "not installed",
        "profile, compare, tune and validate cannot run; plan, scale and report can",
        "pip install --force-reinstall torch torchvision" if there else "pip install torch torchvision",
    )


def _torchvision(seen: Seen) -> Finding:
    version = seen.torch.get("torchvision")
    if "problem" in seen.torch:
        return _useless("torchvision", "torch comes first")
    if version:
        return _works("torchvision", str(version))
    return _missing(
        "torchvision",
        "not installed",
        "no resnet, vgg and other vision models; transformers, synthetic models and your own run",
        "pip install torchvision",
    )


def _gpus(seen: Seen) -> Finding:
    listed = len(seen.nvml.get("gpus", ()))
    if seen.gpus > 1:
        return _works("GPUs", f"torch can use {seen.gpus}: ranks talk over NCCL")
    if seen.gpus == 1:
        return _missing(
            "several GPUs",
            "torch can use one, with --device cuda --fabric local:ranks=1",
            "one GPU has nobody to send gradients to: it shows layers, kernels and what a schedule itself costs",
        )
    if listed or seen.driver:
        newest = seen.nvml.get("driver_cuda")
        built = seen.torch.get("cuda")
        why = f"torch is built for CUDA {built}, the driver runs up to {newest}" if built and newest else None
        why = why or ("torch is built for CPUs" if "problem" not in seen.torch and not built else "torch sees none")
        return _missing(
            "GPUs",
            f"the driver lists {listed or 'some'}, and {why}",
            "everything runs on the CPU",
            "install the torch that https://pytorch.org/get-started names for this driver",
        )
    return _missing(
        "GPUs",
        "no NVIDIA driver and no GPU",
        "everything runs on the CPU, over Gloo: real training on real links, but not the ratios of GPUs",
    )


def _shaped(seen: Seen) -> Finding:
    if seen.shaped_problem is None:
        how = "as root" if seen.root else "in a user namespace, without root"
        return _works("shaped links", f"several hosts on this machine, on links held to a rate, {how}")
    return _missing(
        "shaped links",
        seen.shaped_problem,
        "no links of a chosen rate: auto takes ranks over loopback, where schedules hardly differ",
        NAMESPACES if seen.iproute2 else "apt-get install iproute2",
    )


def _cores(seen: Seen) -> Finding:
    if seen.cores > 1:
        return _works("cores", f"{seen.cores}: each of two ranks gets {seen.cores // 2} of its own")
    return _missing(
        "cores",
        "one",
        "two ranks share it and slow each other: ratios hold only for machines as short of cores as this one",
    )


def _counters(seen: Seen) -> Finding:
    what = "power, energy, clocks, throttling and utilisation"
    problem = seen.nvml.get("problem")
    if problem is None:
        return _works("GPU counters", f"NVML of driver {seen.nvml.get('driver')}: results on GPUs have {what}")
    if not seen.nvml.get("installed"):
        none = "" if seen.has_gpu else "; there is no NVIDIA driver either"
        return _missing(
            "nvidia-ml-py", f"not installed{none}", f"results on GPUs lack {what}", "pip install nvidia-ml-py"
        )
    if not seen.has_gpu:
        return _useless("GPU counters", "nvidia-ml-py is there, and no NVIDIA driver")
    return _missing("GPU counters", str(problem), f"results on GPUs lack {what}")


def _nvcc(seen: Seen) -> Finding:
    if seen.tools.get("nvcc"):
        return _works("nvcc", str(seen.tools["nvcc"]))
    cuda = str(seen.torch.get("cuda") or "13.0").replace(".", "-")
    lost = "xbench's own CUDA kernels cannot be compiled, and torch's operations take their place"
    return _missing(
        "nvcc",
        "not found on PATH, in CUDA_HOME or in /usr/local/cuda",
        lost if seen.has_gpu else f"nothing without a GPU; with one, {lost}",
        f"apt-get install cuda-nvcc-{cuda}, {NVIDIA}",
    )


def _nsight(seen: Seen) -> Finding:
    if seen.tools.get("nsys"):
        return _works("Nsight Systems", str(seen.tools["nsys"]))
    if not seen.has_gpu:
        return _useless("Nsight Systems", "for --nvtx, which marks the work of GPUs")
    return _missing(
        "Nsight Systems",
        "nsys is not on PATH",
        "what --nvtx marks cannot be recorded here",
        f"apt-get install nsight-systems, {NVIDIA}",
    )


def _extra(name: str, version: str | None) -> Finding:
    if version is not None:
        return _works(name, version)
    costs, get = EXTRAS[name]
    return _missing(name, "not installed, or built against another torch" if name == "Horovod" else "not installed",
                    costs, get)  # fmt: skip


def _governor(seen: Seen) -> Finding:
    if seen.governor is None:
        return _useless("CPU governor", "the system does not say")
    if seen.governor == "powersave":
        return _missing(
            "CPU governor",
            "powersave",
            "clock speed may change while it is measured",
            "cpupower frequency-set -g performance",
        )
    return _works("CPU governor", seen.governor)


def _quiet(seen: Seen) -> Finding:
    if not seen.noise:
        return _works("quiet", "no other process is busy now")
    return _missing("quiet", "; ".join(seen.noise), "times that are taken now are noisier, and ratios less certain")


def _works(name: str, detail: str) -> Finding:
    return Finding(name=name, works=True, detail=detail)


def _missing(name: str, detail: str, costs: str, get: str | None = None) -> Finding:
    return Finding(name=name, works=False, detail=detail, costs=costs, get=get)


def _useless(name: str, detail: str) -> Finding:
    return Finding(name=name, works=None, detail=detail)
