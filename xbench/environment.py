"""This machine: its hardware, system and software, present disturbances, and what works on it.

Two results are comparable only if machine and software match. So the record keeps both, and `fingerprint` reduces the
parts that must match to a few letters. Nothing here imports torch: versions come from package metadata, and facts that
only torch knows (the GPU's name, NCCL's version) come from a rank, as `preflight`.

`take_inventory` says what works, in a few seconds, even if parts are broken. torch and NVML are queried in processes of
their own (`PROBES`). One that does not answer in time is killed, or abandoned if the kernel cannot kill it. Shaped
links are really tried, as `--fabric auto` does. `findings` is a pure function of what was seen.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from xbench.distribution import version_of
from xbench.fabrics import shaped_obstacle
from xbench.limits import allowed_cores, last_line, usable_cores
from xbench.record_files import now
from xbench.records import Environment
from xbench.records.parts import Finding, Gpu, GpuLink, Machine
from xbench.text import counted
from xbench.version import __version__
from xbench.workloads.probe import PREFLIGHT, facts_for, start_answering

LIBRARIES = ("torchvision", "timm", "transformers", "numpy", "scipy", "pydantic", "horovod")
RAISED, NOT_RAISED = "raised", "as they come"
"""Gloo's threads precede its event loop if the process may raise their priority (`host_tuning`)."""

RAISED_NICE = -15

_VARIABLES = re.compile(
    r"(NCCL|TORCH_NCCL|TORCH_DISTRIBUTED|CUDA|CUBLAS|CUDNN|UCX)_\w+|(PYTORCH|TORCH)_\w*(ALLOC_CONF|CACHING|TF32|CUDNN)\w*"
    r"|NVIDIA_TF32_OVERRIDE"
)
_PLACES = re.compile(
    r"\w+_(HOME|\w*PATH|\w*ROOT|\w*DIR|\w*DIRECTORY|\w*LIST|VERSION|VISIBLE_DEVICES|COMM_ID)|NCCL_DEBUG\w*"
)
"""Those of them that name a place, a version, a device or a log, which changes no time."""

BUSY_SHARE = 0.5
"""Share of a core above which another process disturbs a measurement."""

TIMEOUT_S = 30.0
"""Time limit of the probes [s]. Importing torch takes a few seconds, and more from a cold disk."""

GRACE_S = 1.0

PROBES = {"torch": PREFLIGHT, "nvml": (sys.executable, "-P", "-m", "xbench.profilers.gpu")}
"""Commands that write the facts of torch and of NVML, as one JSON object."""

NO_WORKLOADS = '{"workloads": [], "device": "auto", "ranks_per_host": 1}'
"""The request to the preflight for the facts of torch alone."""

NAMESPACES = (
    "run xbench as root, or: sysctl -w user.max_user_namespaces=15000 kernel.apparmor_restrict_unprivileged_userns=0"
)
Ask = Callable[[str], "subprocess.Popen[str]"]


def capture(preflight: Mapping[str, object] | None = None) -> Environment:
    """This machine and its software.

    `preflight` contains a rank's findings: `device`, `device_count` and `torch` have their own fields, everything else
    joins `facts` as text. Without it the device is the CPU.
    """
    rest = dict(preflight or {})
    device = str(rest.pop("device", "cpu"))
    device_count = int(str(rest.pop("device_count", 0)))
    torch = rest.pop("torch", None)
    facts = {
        "system": platform.platform(),
        "kernel": platform.release(),
        "python_implementation": platform.python_implementation(),
        "physical_cores": str(psutil.cpu_count(logical=False) or "unknown"),
        "governor": governor() or "unknown",
        "thread_priorities": RAISED if may_raise_priority() else NOT_RAISED,
        **({"variables": given} if (given := gpu_variables(os.environ)) else {}),
        **({"profile_share": share} if (share := os.environ.get("XBENCH_PROFILE_SHARE")) else {}),
        **({"nvidia_driver": driver} if (driver := nvidia_driver()) else {}),
        **{name: version for name in LIBRARIES if (version := version_of(name))},
        **{name: str(value) for name, value in rest.items() if value is not None},
    }
    return Environment(
        hostname=socket.gethostname(),
        cpu=cpu_model(),
        cores=usable_cores(),
        memory_bytes=psutil.virtual_memory().total,
        python=platform.python_version(),
        torch=str(torch) if torch else version_of("torch"),
        device=device,
        device_count=device_count,
        xbench=__version__,
        commit=commit(),
        facts=facts,
    )


def gpu_variables(environ: Mapping[str, str]) -> str:
    """Variables that change what NCCL, CUDA and torch do on GPUs, as 'NCCL_ALGO=Ring NCCL_P2P_DISABLE=1'; '' for none.

    They are those of the process that starts a run. What xbench sets for its ranks is the same in every run.
    """
    names = (name for name in sorted(environ) if _VARIABLES.fullmatch(name) and not _PLACES.fullmatch(name))
    return " ".join(f"{name}={environ[name]}" for name in names)


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name as its maker writes it; the architecture if the system does not tell."""
    try:
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "Hardware") and value.strip():
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown"


def governor(cpu: Path = Path("/sys/devices/system/cpu/cpu0/cpufreq")) -> str | None:
    """The frequency governor of the first core, or None if the system has none (most virtual machines)."""
    try:
        return (cpu / "scaling_governor").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def may_raise_priority() -> bool:
    """True if this process may give a thread the nice value -15: root or CAP_SYS_NICE, or a limit that allows it.

    It is tried in a thread that ends at once. False on systems without priorities of threads.
    """
    results: list[bool] = []

    def attempt() -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), RAISED_NICE)
            results.append(True)
        except OSError:
            results.append(False)

    if sys.platform != "linux":  # elsewhere it would affect the whole process
        return False
    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return results == [True]


def nvidia_driver(folder: Path = Path("/proc/driver/nvidia")) -> str | None:
    """The version of the NVIDIA kernel driver, or None if none is loaded."""
    try:
        text = (folder / "version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)\s", text, flags=re.MULTILINE)
    return match[1] if match else None


def must_match(environment: Environment) -> tuple[dict[str, str], dict[str, str]]:
    """(Machine, software): facts that must be equal in two results whose times are compared, by name.

    The host's name is not one: two machines of one kind are equivalent. Versions count only if they affect times:
    neither Python's and the kernel's patches nor, on a CPU, the software for GPUs.
    """
    facts = environment.facts
    machine = {
        "cpu": environment.cpu,
        "cores": str(environment.cores),
        "physical cores": facts.get("physical_cores", "unknown"),
        "memory": f"{round(environment.memory_bytes / 1024**3)} GiB",
        "governor": facts.get("governor", "unknown"),
        "device": environment.device,
        "devices": str(environment.device_count),
    }
    if environment.device == "cpu":  # a record without this fact was made by root
        machine["priorities of Gloo's threads"] = facts.get("thread_priorities", RAISED)
    software = {
        "torch": (environment.torch or "none").partition("+")[0],
        "Python": _release(environment.python),
        "kernel": _release(facts.get("kernel", "unknown")),
    }
    if environment.device != "cpu":
        software |= {
            "CUDA": facts.get("cuda", "unknown"),
            "NCCL": facts.get("nccl", "unknown"),
            "NVIDIA driver": facts.get("nvidia_driver", "unknown"),
        }
        if "variables" in facts:  # a record without this fact was made with none, or before it was kept
            software["variables"] = facts["variables"]
    return machine, software


def fingerprint(environment: Environment) -> str:
    """'3f9a1c02-77d0b1e4': equal letters mean comparable times. First the machine's, then the software's.

    Raised priorities, which all earlier results had, do not enter it, so that earlier fingerprints stay valid.
    """
    parts = [{name: value for name, value in part.items() if value != RAISED} for part in must_match(environment)]
    return "-".join(hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:8] for part in parts)


def differences(first: Environment, second: Environment) -> list[str]:
    """Differences that prevent a comparison, as 'torch: 2.15.0 and 2.14.0'; empty if fingerprints match."""
    facts, other_facts = ({**machine, **software} for machine, software in map(must_match, (first, second)))
    names = dict.fromkeys([*facts, *other_facts])
    return [
        f"{name}: {facts.get(name, 'none')} and {other_facts.get(name, 'none')}"
        for name in names
        if facts.get(name) != other_facts.get(name)
    ]


def _release(version: str) -> str:
    """'6.18' of '6.18.44-amd64'."""
    return ".".join(version.split(".")[:2])


def commit(folder: Path = Path(__file__).parent) -> str | None:
    """The git commit of the running xbench checkout, with '+' if files differ from it; None outside a checkout.

    Changes under results/ do not count: writing a result does not change the code that made it.
    """
    root = folder.resolve().parent
    if not (root / ".git").exists():
        return None
    head = _git(root, "rev-parse", "HEAD")
    if head is None:
        return None
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
    return head + ("+" if changed else "")


def noise_warnings(interval_s: float = 0.2) -> list[str]:
    """Disturbances of a measurement that starts now, one sentence each. Watches other processes for `interval_s`."""
    before = _cpu_seconds()
    started = time.monotonic()
    time.sleep(interval_s)
    elapsed_s = time.monotonic() - started
    busy = {
        f"{name} (pid {pid})": (seconds - before[pid, name]) / elapsed_s
        for (pid, name), seconds in _cpu_seconds().items()
        if (pid, name) in before
    }
    return noise(os.getloadavg()[0], allowed_cores(), governor(), busy.items())


def noise(load: float, cores: int, governor: str | None, busy: Iterable[tuple[str, float]]) -> list[str]:
    """Warnings for a load average over one minute, a governor, and (process, share of a core) pairs."""
    warnings = []
    loud = sorted((pair for pair in busy if pair[1] > BUSY_SHARE), key=lambda pair: -pair[1])
    if loud:
        named = ", ".join(f"{name} uses {share:.1f} cores" for name, share in loud[:3])
        warnings.append(f"other processes are busy: {named}; times will be noisier")
    if load > cores / 2:
        warnings.append(f"the load average was {load:.1f} on {counted(cores, 'core')} before the run started")
    if governor == "powersave":
        warnings.append("the CPU governor is powersave: clock speed may change while it is measured")
    return warnings


_RANK_VARIABLES = ("TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_STEP_ID")
"""Variables of which one is set if an engine started this rank.

Its process, the parent, is the other ranks' as well.
"""


def _cpu_seconds() -> dict[tuple[int, str], float]:
    """CPU time [s] of every process except for this one, its engine's process, and the children of either."""
    top = psutil.Process()
    if any(name in os.environ for name in _RANK_VARIABLES):  # the other ranks start meanwhile, and are not disturbances
        top = top.parent() or top
    own_pids = {os.getpid(), top.pid, *(child.pid for child in top.children(recursive=True))}
    seconds = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        times = process.info["cpu_times"]
        if process.pid not in own_pids and times is not None:
            seconds[process.pid, str(process.info["name"])] = times.user + times.system
    return seconds


def _git(root: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


@dataclass(frozen=True)
class Observations:
    """Observations of an inventory. `torch` and `nvml` are the answers of `PROBES`."""

    here: Environment
    torch: Mapping[str, Any]
    nvml: Mapping[str, Any]
    shaped_problem: str | None = None
    root: bool = True
    noise: Sequence[str] = ()

    @property
    def gpus(self) -> int:
        """Number of GPUs that training can use."""
        return int(self.torch.get("gpus", 0))

    @property
    def has_driver(self) -> bool:
        """True if NVIDIA's driver is loaded."""
        return "nvidia_driver" in self.here.facts


def start_probe(what: str) -> subprocess.Popen[str]:
    """Start a process that reports the facts of 'torch', or of 'nvml'."""
    return start_answering(PROBES[what])


def take_inventory(*, timeout_s: float = TIMEOUT_S, ask: Ask = start_probe) -> Machine:
    """Return this machine's inventory. It takes about as long as importing torch."""
    deadline_s = time.monotonic() + timeout_s
    probes = {what: ask(what) for what in PROBES}
    try:
        shaped_problem, noise = shaped_obstacle(), noise_warnings()
        said = {what: answer(probe, deadline_s) for what, probe in probes.items()}
    finally:
        for probe in probes.values():
            _end(probe)
    here = capture(None if "problem" in said["torch"] else facts_for(said["torch"]))
    return machine_of(Observations(here, said["torch"], said["nvml"], shaped_problem, os.geteuid() == 0, noise))


def listed_gpus(*, timeout_s: float = TIMEOUT_S, ask: Ask = start_probe) -> int:
    """Return the number of GPUs that NVML lists: 0 without a driver, without NVML, and if NVML does not answer."""
    if nvidia_driver() is None:
        return 0
    probe = ask("nvml")
    try:
        return len(answer(probe, time.monotonic() + timeout_s).get("gpus", ()))
    finally:
        _end(probe)


def machine_of(seen: Observations) -> Machine:
    """Return the inventory that follows from the observations."""
    fingerprints = {"cpu": fingerprint(on_cpu(seen.here))}
    if seen.here.device != "cpu":
        fingerprints = {"cuda": fingerprint(seen.here), **fingerprints}
    return Machine(
        created=now(),
        environment=seen.here,
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
        out, log = probe.communicate(NO_WORKLOADS, timeout=max(0.0, deadline_s - time.monotonic()))
        said: dict[str, Any] = json.loads(out)
        return said
    except subprocess.TimeoutExpired:
        problem = "no answer in time: it hangs, or the disk is slow"
    except ValueError:
        why = last_line(log or "")
        problem = f"it ended with status {probe.returncode} and no answer{f': {why}' if why else ''}"
    return {"problem": problem}


def _end(probe: subprocess.Popen[str]) -> None:
    """Kill a probe and its children. A probe in a driver that hangs can be neither killed nor waited for."""
    if probe.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(probe.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            probe.wait(GRACE_S)


def findings(seen: Observations) -> list[Finding]:
    """Return all findings, the most important first: what works, and what is missing, with its cost."""
    parts = (_torch, _torchvision, _gpus, _shaped, _cores, _counters, _quiet)
    return [part(seen) for part in parts]


def _torch(seen: Observations) -> Finding:
    problem = seen.torch.get("problem")
    if problem is None:
        cuda, nccl = seen.torch.get("cuda"), seen.torch.get("nccl")
        built = f"built for CUDA {cuda}" + (f" with NCCL {nccl}" if nccl else "") if cuda else "built for CPUs"
        return _works("torch", f"{seen.torch.get('torch')}, {built}")
    there = seen.here.torch is not None
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
    if listed or seen.has_driver:
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
        "apt-get install iproute2" if "iproute2" in seen.shaped_problem else NAMESPACES,
    )


def _cores(seen: Observations) -> Finding:
    cores = seen.here.cores
    if cores > 1:
        return _works("cores", f"{cores}: each of two ranks gets {cores // 2} of its own")
    return _missing(
        "cores",
        "one",
        "two ranks share it and slow each other: ratios hold only for machines as short of cores as this one",
    )


def _counters(seen: Observations) -> Finding:
    what = "power, energy, clocks, throttling and utilisation"
    problem: str | None = seen.nvml.get("problem")
    if problem is None:
        return _works("GPU counters", f"NVML of driver {seen.nvml.get('driver')}: results on GPUs have {what}")
    if "nvidia-ml-py" in problem:
        none = "" if seen.has_driver else "; there is no NVIDIA driver either"
        return _missing(
            "nvidia-ml-py", f"not installed{none}", f"results on GPUs lack {what}", "pip install nvidia-ml-py"
        )
    if not seen.has_driver:
        return _useless("GPU counters", "nvidia-ml-py is there, and no NVIDIA driver")
    return _missing("GPU counters", problem, f"results on GPUs lack {what}")


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
