"""Inventory of this machine: what it is and what works on it, in a few seconds, even if parts are broken.

torch and NVML are queried in processes of their own (`inventory_probe`), while this one examines everything else. A
probe that does not answer in time is killed, or abandoned if the kernel cannot kill it. Shaped links are really tried,
as `--fabric auto` does.

`findings` is a pure function of what was seen: what works and what is missing. Each missing item has its cost and, if
there is one, the command that installs it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from xbench import environment
from xbench import horovod as horovod_package
from xbench.environment import differences, fingerprint, version_of
from xbench.fabrics import links_missing, shaped_obstacle
from xbench.limits import last_line
from xbench.record_files import now
from xbench.records import Environment
from xbench.records.parts import Finding, Gpu, GpuLink, Machine
from xbench.workloads.probe import facts_for, start_answering

TIMEOUT_S = 30.0
"""Time limit of the probes [s]. Importing torch takes a few seconds, and more from a cold disk."""

GRACE_S = 1.0
# -P: a profile.py or random.py in the user's folder must not hide the standard library's.
PROBE = (sys.executable, "-P", "-m", "xbench.machine.inventory_probe")
Ask = Callable[[str], "subprocess.Popen[str]"]

NVIDIA = "from NVIDIA's repository"
NAMESPACES = (
    "run xbench as root, or: sysctl -w user.max_user_namespaces=15000 kernel.apparmor_restrict_unprivileged_userns=0"
)

EXTRAS = {
    "Horovod": ("mode horovod cannot be used", "make horovod in a checkout of xbench"),
    "scikit-learn": ("converge has no data to train on", "pip install scikit-learn"),
    "Ray": ("cluster run --engine ray cannot be used", "pip install ray"),
}
"""Optional packages: the cost of their absence, and the command that installs them."""


@dataclass(frozen=True)
class Observations:
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
    """Version and path of 'nvcc' ('13.2, /usr/local/cuda/bin/nvcc'), or None."""

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


def start_probe(what: str) -> subprocess.Popen[str]:
    """Start a process that reports the facts of torch, or of NVML."""
    return start_answering([*PROBE, what], subprocess.DEVNULL)


def take_inventory(*, timeout_s: float = TIMEOUT_S, ask: Ask = start_probe) -> Machine:
    """Return this machine's inventory. It takes about as long as importing torch."""
    deadline_s = time.monotonic() + timeout_s
    probes = {what: ask(what) for what in ("torch", "nvml")}
    try:
        shaped_problem = shaped_obstacle()
        noise = environment.noise_warnings()
        tools = {"nvcc": nvcc()}
        answers = {what: answer(probe, deadline_s) for what, probe in probes.items()}
    finally:
        for probe in probes.values():
            _end(probe)
    seen = Observations(
        torch=answers["torch"],
        nvml=answers["nvml"],
        driver=environment.nvidia_driver(),
        shaped_problem=shaped_problem,
        iproute2=not links_missing(),
        root=os.geteuid() == 0,
        cores=environment.usable_cores(),
        governor=environment.governor(),
        noise=noise,
        tools=tools,
        extras=extras(),
    )
    return machine_of(seen)


def listed_gpus(*, timeout_s: float = TIMEOUT_S, ask: Ask = start_probe) -> int:
    """Return the number of GPUs that NVML lists: 0 without a driver, without NVML, and if NVML does not answer."""
    if environment.nvidia_driver() is None:
        return 0
    probe = ask("nvml")
    try:
        return len(answer(probe, time.monotonic() + timeout_s).get("gpus", ()))
    finally:
        _end(probe)


def extras() -> dict[str, str | None]:
    """Return the version of each package of `EXTRAS`, None if unusable. Nothing is imported."""
    horovod = horovod_package.version() if horovod_package.obstacle() is None else None
    return {"Horovod": horovod, "scikit-learn": version_of("scikit-learn"), "Ray": version_of("ray")}


def machine_of(seen: Observations) -> Machine:
    """Return the inventory that follows from the observations."""
    here = environment.capture(None if "problem" in seen.torch else facts_for(seen.torch))
    fingerprints = {"cpu": fingerprint(on_cpu(here))}
    if here.device != "cpu":
        fingerprints = {"cuda": fingerprint(here), **fingerprints}
    return Machine(
        created=now(),
        environment=here,
        fingerprints=fingerprints,
        gpus=[Gpu.model_validate(gpu) for gpu in seen.nvml.get("gpus", ())],
        links=[GpuLink.model_validate(link) for link in seen.nvml.get("links", ())],
        findings=findings(seen),
    )


def on_cpu(found: Environment) -> Environment:
    """Return the same machine as a run with `--device cpu` sees it."""
    return found.model_copy(update={"device": "cpu", "device_count": 0})


def held_against(machine: Machine, path: str, other: Environment) -> Machine:
    """Return the machine with the differences that make a saved result's times incomparable with its own."""
    here = machine.environment if other.device != "cpu" else on_cpu(machine.environment)
    return machine.model_copy(update={"differs_from": {**machine.differs_from, path: differences(other, here)}})


def answer(probe: subprocess.Popen[str], deadline_s: float) -> dict[str, Any]:
    """Return a probe's answer by the deadline (`time.monotonic`) [s], or a problem."""
    try:
        out, log = probe.communicate(timeout=max(0.0, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        return {"problem": "no answer in time: it hangs, or the disk is slow", "installed": True}
    try:
        said = json.loads(out)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        why = last_line(log or "")
        problem = f"it ended with status {probe.returncode} and no answer{f': {why}' if why else ''}"
        return {"problem": problem, "installed": True}
    return said


def _end(probe: subprocess.Popen[str]) -> None:
    """Kill a probe and its children. A probe in a driver that hangs can be neither killed nor waited for."""
    if probe.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(probe.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            probe.wait(GRACE_S)


def nvcc(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return '13.0, /usr/local/cuda/bin/nvcc': the CUDA compiler that torch's extension builder would find, or None."""
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH")
    places = [*([os.path.join(home, "bin")] if home else []), environ.get("PATH", os.defpath), "/usr/local/cuda/bin"]
    path = next((found for place in places if (found := shutil.which("nvcc", path=place))), None)
    if path is None:
        return None
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"release (\d+\.\d+)", said)
    return f"{version[1] if version else 'version unknown'}, {path}"


def findings(seen: Observations) -> list[Finding]:
    """Return all findings, the most important first."""
    return [
        _torch(seen),
        _torchvision(seen),
        _gpus(seen),
        _shaped(seen),
        _cores(seen),
        _counters(seen),
        _nvcc(seen),
        *(_extra(name, version) for name, version in seen.extras.items()),
        _governor(seen),
        _quiet(seen),
    ]


def _torch(seen: Observations) -> Finding:
    problem = seen.torch.get("problem")
    if problem is None:
        cuda, nccl = seen.torch.get("cuda"), seen.torch.get("nccl")
        built = f"built for CUDA {cuda}" + (f" with NCCL {nccl}" if nccl else "") if cuda else "built for CPUs"
        return _works("torch", f"{seen.torch.get('torch')}, {built}")
    there = bool(seen.torch.get("installed"))
    return _missing(
        "torch",
        f"it is installed and does not work: {problem}" if there else "not installed",
        "profile, compare and tune cannot run; plan, scale and report can",
        "pip install --force-reinstall torch torchvision" if there else "pip install torch torchvision",
    )


def _torchvision(seen: Observations) -> Finding:
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


def _gpus(seen: Observations) -> Finding:
    listed = len(seen.nvml.get("gpus", ()))
    if seen.gpus > 1:
        return _works("GPUs", f"torch can use {seen.gpus}: ranks talk over NCCL")
    if seen.gpus == 1:
        return _missing(
            "several GPUs",
            "torch can use one",
            "one GPU has nobody to send gradients to: its computation is real, and its collectives are emulated",
        )
    if listed or seen.driver:
        newest = seen.nvml.get("driver_cuda")
        built = seen.torch.get("cuda")
        why = f"torch is built for CUDA {built}, the driver runs up to {newest}" if built and newest else None
        why = why or ("torch is built for CPUs" if "problem" not in seen.torch and not built else "torch sees none")
        return _missing(
            "GPUs",
            f"the driver lists {listed or 'some'}, and {why}",
            "only --device cpu computes" if listed else "everything runs on the CPU",
            "install the torch that https://pytorch.org/get-started names for this driver",
        )
    return _missing(
        "GPUs",
        "no NVIDIA driver and no GPU",
        "everything runs on the CPU, over Gloo: real training on real links, but not the ratios of GPUs",
    )


def _shaped(seen: Observations) -> Finding:
    if seen.shaped_problem is None:
        how = "as root" if seen.root else "in a user namespace, without root"
        return _works("shaped links", f"several hosts on this machine, on links held to a rate, {how}")
    return _missing(
        "shaped links",
        seen.shaped_problem,
        "no links of a chosen rate: auto takes ranks over loopback, where schedules hardly differ",
        NAMESPACES if seen.iproute2 else "apt-get install iproute2",
    )


def _cores(seen: Observations) -> Finding:
    if seen.cores > 1:
        return _works("cores", f"{seen.cores}: each of two ranks gets {seen.cores // 2} of its own")
    return _missing(
        "cores",
        "one",
        "two ranks share it and slow each other: ratios hold only for machines as short of cores as this one",
    )


def _counters(seen: Observations) -> Finding:
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


def _nvcc(seen: Observations) -> Finding:
    if seen.tools.get("nvcc"):
        return _works("nvcc", str(seen.tools["nvcc"]))
    cuda = str(seen.torch.get("cuda") or "13.0").replace(".", "-")
    lost = "xbench's CUDA kernels need the NVRTC of torch's wheels, and Horovod averages on CPUs only"
    return _missing(
        "nvcc",
        "not found on PATH, in CUDA_HOME or in /usr/local/cuda",
        lost if seen.has_gpu else f"nothing without a GPU; with one, {lost}",
        f"apt-get install cuda-nvcc-{cuda}, {NVIDIA}",
    )


def _extra(name: str, version: str | None) -> Finding:
    if version is not None:
        return _works(name, version)
    costs, get = EXTRAS[name]
    return _missing(name, "not installed, or built against another torch" if name == "Horovod" else "not installed",
                    costs, get)  # fmt: skip


def _governor(seen: Observations) -> Finding:
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


def _quiet(seen: Observations) -> Finding:
    if not seen.noise:
        return _works("quiet", "no other process is busy now")
    return _missing("quiet", "; ".join(seen.noise), "times that are taken now are noisier, and ratios less certain")


def _works(name: str, detail: str) -> Finding:
    return Finding(name=name, works=True, detail=detail)


def _missing(name: str, detail: str, costs: str, get: str | None = None) -> Finding:
    return Finding(name=name, works=False, detail=detail, costs=costs, get=get)


def _useless(name: str, detail: str) -> Finding:
    return Finding(name=name, works=None, detail=detail)
