"""Parent's side of `workloads.preflight`: starts it, waits a bounded time, and turns its answer into values or errors.

Nothing here imports torch.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field

from xbench import errors
from xbench.errors import WorkloadError, XbenchError
from xbench.interpreter import end_children
from xbench.launch_guard import GUARD
from xbench.limits import last_line, limit_behind
from xbench.records import WorkloadRecord
from xbench.spec import DeviceType, WorkloadSpec
from xbench.units import format_seconds

DEFAULT_TIMEOUT_S = 300.0
# -P: a profile.py or random.py in the user's folder must not hide the standard library's.
PREFLIGHT = (sys.executable, "-P", "-m", "xbench.workloads.preflight")
_LOG_CHARACTERS = 20_000


class Probed(BaseModel):
    """One resolved workload, and warnings about it."""

    model_config = ConfigDict(frozen=True)

    record: WorkloadRecord
    warnings: list[str] = Field(default_factory=list)


class Preflight(BaseModel):
    """Facts about the machine and its torch, and the workloads with every default filled in."""

    model_config = ConfigDict(frozen=True)

    device: DeviceType
    gpu: int | None = None
    gpus: int
    gpu_names: list[str] = Field(default_factory=list)
    torch: str
    torchvision: str | None
    nccl: str | None
    cuda: str | None
    workloads: list[Probed]
    slowed: list[str] = Field(default_factory=list, description="warnings about variables of the environment")

    @property
    def specs(self) -> tuple[WorkloadSpec, ...]:
        """The resolved specs, in the order of the request."""
        return tuple(probed.record.spec for probed in self.workloads)

    @property
    def warnings(self) -> list[str]:
        """Warnings about the workloads and the environment for the user, without duplicates."""
        return list(dict.fromkeys([*(one for probed in self.workloads for one in probed.warnings), *self.slowed]))

    def environment_facts(self) -> dict[str, object]:
        """Facts for `environment.capture`."""
        return facts_for(self.model_dump(exclude={"workloads", "slowed"}))


def facts_for(facts: Mapping[str, Any]) -> dict[str, object]:
    """Facts for `environment.capture`: the name of the GPUs instead of 'cuda', and their number, 0 on the CPU."""
    on_gpus = facts["device"] == "cuda"
    names = list(dict.fromkeys(facts["gpu_names"]))
    return {
        "device": " and ".join(names) if on_gpus and names else facts["device"],
        "device_count": facts["gpus"] if on_gpus else 0,
        **{name: facts[name] for name in ("torch", "torchvision", "nccl", "cuda")},
    }


def probe(
    specs: Sequence[WorkloadSpec],
    device: str,
    ranks: int | Sequence[int],
    local_rank: int | None = None,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Preflight:
    """Check in a separate process that the workloads can be built, run and held in memory.

    `device` is auto, cpu, cuda or cuda:N. `ranks` is the number of processes of one job on this machine. With one
    number, all workloads run at once. With a number for each workload, they run one after another. `local_rank` is ours
    among the processes if each of them probes; only its own GPU is then used. It takes the seconds of an import of
    torch. Raises SpecError and WorkloadError with the preflight's findings, or if it crashes or takes longer than
    `timeout_s`.
    """
    asked = [spec.model_dump(mode="json") for spec in specs]
    among = ranks if isinstance(ranks, int) else list(ranks)
    request = {"workloads": asked, "device": device, "ranks_per_host": among, "local_rank": local_rank}
    titles = ", ".join(dict.fromkeys(spec.title for spec in specs))
    out, log, status = _run_preflight(json.dumps(request), timeout_s, titles)
    try:
        answer: dict[str, Any] = json.loads(out)
        failure = answer.pop("error")
    except (ValueError, AttributeError, KeyError, TypeError):
        log_line = last_line(log)
        raise WorkloadError(
            f"checking {titles} ended with {_ending(status)} and no answer{f': {log_line}' if log_line else ''}",
            hint=limit_behind(log),
            detail=log or None,
        ) from None
    if failure is not None:
        kind = getattr(errors, failure["type"], XbenchError)
        told = {key: failure.get(key) for key in ("hint", "detail")}
        raise kind(failure["message"], **told, lines=failure.get("lines", ()))
    return Preflight.model_validate(answer)


def start_answering(command: Sequence[str]) -> subprocess.Popen[str]:
    """Start a process that calls `answer_alone`, in a session of its own, tied to the life of this one."""
    guarded, pipe = [*GUARD, str(os.getpid()), *command], subprocess.PIPE
    return subprocess.Popen(
        guarded, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace", start_new_session=True
    )


def answer_alone(answer: Callable[[], Mapping[str, Any]]) -> NoReturn:
    """Write the answer to stdout, and nothing else, and exit without waiting for threads that may have been left."""
    answer_to = os.dup(1)
    os.dup2(2, 1)  # what a factory or a library prints is no part of the answer
    said = answer()
    end_children()  # they hold the streams open
    with os.fdopen(answer_to, "w", encoding="utf-8") as stream:
        json.dump(said, stream)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _run_preflight(request: str, timeout_s: float, titles: str) -> tuple[str, str, int]:
    """(stdout, tail of stderr, exit status) of one preflight, which is never left running."""
    process = start_answering(PREFLIGHT)
    try:
        out, log = process.communicate(request, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise WorkloadError(
            f"checking {titles} took longer than {format_seconds(timeout_s)}",
            hint="does its factory download, or wait for something?",
        ) from None
    finally:
        # The whole session: a factory may have started processes (data loaders).
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return out, log[-_LOG_CHARACTERS:], process.returncode


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
