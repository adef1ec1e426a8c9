"""Environment of a run: machine, system, software, and present disturbances.

Two results are comparable only if machine and software match. So the record keeps both, and `fingerprint` reduces the
parts that must match to a few letters. Nothing here imports torch: versions come from package metadata, and facts that
only torch knows (the GPU's name, NCCL's version) come from a rank, as `preflight`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

import psutil

from xbench.records import Environment
from xbench.text import counted
from xbench.version import __version__

LIBRARIES = ("torchvision", "timm", "transformers", "numpy", "scipy", "pydantic", "horovod")
RAISED, NOT_RAISED = "raised", "as they come"
"""Gloo's threads precede its event loop if the process may raise their priority (`host.tuning`)."""

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


def usable_cores() -> int:
    """Number of cores that this process may use, which containers and taskset limit."""
    return min(_allowed_cores(), cpu_quota() or _allowed_cores())


def _allowed_cores() -> int:
    """Number of cores that this process may run on, at any share of their time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(proc: Path = Path("/proc/self")) -> int | None:
    """Whole cores of time that the tightest of our control groups allows (v2 or v1), at least 1; None without a limit.

    A group that has used its time of a period is stopped until the next one, on all cores.
    """
    found = []
    for folder, names in itertools.product(
        control_groups("cpu", proc), (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    ):
        try:
            quota, period = " ".join((folder / name).read_text() for name in names).split()
            if quota not in ("max", "-1"):
                found.append(max(1, int(quota) // int(period)))
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return min(found, default=None)


def control_groups(controller: str, proc: Path = Path("/proc/self")) -> list[Path]:
    """Return the folders of our control groups that may limit a controller (`cpu`, `memory`), and of all their parents.

    A service, a user's slice and a container inside another one each have a group, and every limit on the way to the
    root holds. `cgroup` in `proc` names the groups: `0::PATH` in v2, `N:CONTROLLERS:PATH` in v1. `mountinfo` says where
    each hierarchy is mounted, and which of its groups is the top there. Parents above that cannot be seen.
    """
    try:
        groups = (proc / "cgroup").read_text().splitlines()
        mounts = (proc / "mountinfo").read_text().splitlines()
    except OSError:
        return []
    ours = {names: path for _, names, path in (line.split(":", 2) for line in groups if line.count(":") >= 2)}
    found = []
    for line in mounts:
        before, _, after = line.partition(" - ")
        kind, options = after.split(" ")[0], after.split(" ")[-1].split(",")
        if kind == "cgroup" and controller in options:
            path = next((path for names, path in ours.items() if controller in names.split(",")), None)
        else:
            path = ours.get("") if kind == "cgroup2" else None
        if path is None:
            continue
        top, place = before.split(" ")[3:5]
        below = path.removeprefix(top.rstrip("/")) if f"{path}/".startswith(f"{top.rstrip('/')}/") else "/"
        mounted = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), place))
        inner = [part for part in below.split("/") if part]
        if ".." not in inner:
            found += [mounted.joinpath(*inner[:depth]) for depth in range(len(inner), -1, -1)]
    return list(dict.fromkeys(found))


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
    return noise(os.getloadavg()[0], _allowed_cores(), governor(), busy.items())


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


def version_of(package: str) -> str | None:
    """The version of an installed package; None where there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(root: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
