"""Inventory of this machine: what it is and what works on it, in a few seconds, even if parts are broken.

torch and NVML are queried in processes of their own (`inventory_probe`), while this one examines everything else. A
probe that does not answer in time is killed, or abandoned if the kernel cannot kill it. Shaped links are really tried,
as `--fabric auto` does.
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
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from xbench import environment
from xbench import horovod as horovod_package
from xbench.environment import differences, fingerprint, version_of
from xbench.fabrics import links_missing, shaped_obstacle
from xbench.launch_guard import GUARD
from xbench.limits import last_line
from xbench.machine.findings import Seen, findings
from xbench.records import Environment
from xbench.records.machine import Gpu, GpuLink, Machine
from xbench.workloads.probe import facts_for

TIMEOUT_S = 30.0
"""Time limit of the probes [s]. Importing torch takes a few seconds, and more from a cold disk."""

GRACE_S = 1.0
# -P: a profile.py or random.py in the user's folder must not hide the standard library's.
PROBE = (sys.executable, "-P", "-m", "xbench.machine.inventory_probe")
Ask = Callable[[str], "subprocess.Popen[str]"]


def start_probe(what: str) -> subprocess.Popen[str]:
    """Start a process that reports the facts of torch, or of NVML."""
    return subprocess.Popen(
        [*GUARD, str(os.getpid()), *PROBE, what],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def take_inventory(*, timeout_s: float = TIMEOUT_S, ask: Ask = start_probe) -> Machine:
    """Return this machine's inventory. It takes about as long as importing torch."""
    deadline_s = time.monotonic() + timeout_s
    probes = {what: ask(what) for what in ("torch", "nvml")}
    try:
        shaped_problem = shaped_obstacle()
        noise = environment.noise_warnings()
        tools = {"nvcc": nvcc(), "nsys": shutil.which("nsys")}
        answers = {what: answer(probe, deadline_s) for what, probe in probes.items()}
    finally:
        for probe in probes.values():
            _end(probe)
    seen = Seen(
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


def extras() -> dict[str, str | None]:
    """Return the version of each package of `findings.EXTRAS`, None if unusable. Nothing is imported."""
    horovod = horovod_package.version() if horovod_package.obstacle() is None else None
    return {"Horovod": horovod, "scikit-learn": version_of("scikit-learn"), "Ray": version_of("ray")}


def machine_of(seen: Seen) -> Machine:
    """Return the inventory that follows from the observations."""
    here = environment.capture(None if "problem" in seen.torch else facts_for(seen.torch))
    fingerprints = {"cpu": fingerprint(on_cpu(here))}
    if here.device != "cpu":
        fingerprints = {"cuda": fingerprint(here), **fingerprints}
    return Machine(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
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
