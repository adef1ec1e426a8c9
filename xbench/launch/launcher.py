"""Launch seen from the parent: start the ranks of every job, watch them, end them, report the result.

    parent ── agent of job 0 on host 0 (`launch.agent`) ── rank 0, …
           ├─ agent of job 0 on host 1                         ── rank 1, …
           └─ agent of job 1 on host 0 …

There is one agent per host and job. The ranks of each job meet at a port of their own on host 0. The parent touches
neither CUDA nor torch. It reads the ranks' journals (`rank.journal`), judges them in `launch.monitor`, and owns their
processes. A launch ends in bounded time and leaves no process.

Each process has a session of its own and is tied to the parent's life, with its output in a file. A session keeps the
terminal's Ctrl-C away from ranks, because the parent decides when they stop. It also lets one signal reach a whole
group. The guard (`launch_guard`) makes the kernel kill them if the parent is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from xbench.errors import FabricError, Interrupted, SpecError
from xbench.fabrics.fabric import Fabric, HostSlot
from xbench.interrupts import interrupts_held
from xbench.launch.agent import AGENT, tail
from xbench.launch.monitor import AgentWatch, Monitor, Probes, RankWatch, Verdict
from xbench.launch_guard import GUARD
from xbench.rank.journal import JournalReader, Take, pid_alive

POLL_S = 0.5
"""Time between two checks [s]. If no core is left over, each check takes 1 to 2 ms on a core of the ranks."""

TERMINATE_S = 3.0
KILL_S = 5.0
FULL_DISK_BYTES = 64 * 1024
UNDISTURBED = "what was measured is kept, and none of it counts as the stated link's: run it again undisturbed"
OnNote = Callable[[int, int, float, str], None]
"""Function of a job, a rank, a monotonic time [s] and the rank's note on its current work."""

_TORCHRUN_VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "XBENCH_CORES",
)  # fmt: skip


@dataclass
class Started:
    """A process group that we started, and its log."""

    process: subprocess.Popen[bytes]
    log: Path

    def read_log(self) -> str:
        """The end of its log."""
        return tail(self.log)


class ProcessGroups:
    """All process groups of one launch. `stop` leaves no process."""

    def __init__(self) -> None:
        self.started: list[Started] = []
        self._stopped = False

    def start(self, prefix: Sequence[str], argv: Sequence[str], env: Mapping[str, str], log: Path) -> Started:
        """Start `prefix` + guard + `argv` with both output streams in `log`. Raises OSError."""
        # A prefix's commands (ip netns exec, taskset) replace themselves, so the guard's parent is this process.
        command = [*prefix, *GUARD, str(os.getpid()), *argv]
        with open(log, "wb") as stream:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=dict(env), start_new_session=True
            )
        one = Started(process, log)
        self.started.append(one)
        return one

    def stop(self, others: Iterable[int] = ()) -> None:
        """Send SIGTERM to every group, and after 3 s SIGKILL to the rest, descendants and `others` (ranks) included."""
        if self._stopped:
            return
        self._stopped = True
        left = self._descendants()
        for pid in others:
            with contextlib.suppress(psutil.NoSuchProcess):
                left.append(psutil.Process(pid))
        left = [one for one in left if _session(one.pid) != os.getsid(0)]
        self._signal_groups(signal.SIGTERM)
        _wait(left, TERMINATE_S)
        left += self._descendants()
        self._signal_groups(signal.SIGKILL)
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        for started in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.process.wait(KILL_S)
        _wait(left, KILL_S)

    def _descendants(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for started in self.started:
            if started.process.poll() is None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    root = psutil.Process(started.process.pid)
                    found += [root, *root.children(recursive=True)]
        return found

    def _signal_groups(self, number: signal.Signals) -> None:
        for started in self.started:
            # While one member lives, the group's id is not reused. A group without members does not exist.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(started.process.pid, number)


def launch(
    fabric: Fabric,
    jobs: int,
    module: str,
    argument: Path,
    directory: Path,
    *,
    on_event: Take,
    silence_s: float,
    on_note: OnNote = lambda job, rank, at_s, text: None,
) -> Verdict:
    """Run `python -m MODULE ARGUMENT --job J --directory DIRECTORY` as every rank of `jobs` jobs, to the end.

    `on_event(job, rank, event)` gets every event that a rank writes to its journal, in order, from this thread.
    `on_note(job, rank, at_s, text)` gets the ranks' notes on their current work, with the machine's monotonic time [s].
    `silence_s` is the time without any event or note of any rank after which the launch counts as hung [s]. Call this
    function from the thread that lives longest: the kernel ties the ranks' lives to the calling thread.

    Raises Interrupted on Ctrl-C (SIGTERM and SIGHUP too, inside `open_fabric`). Raises SpecError for a fabric whose
    ranks another launcher starts, and OSError if a process or file cannot be made. Passes on exceptions of `on_event`.
    All processes have ended before it raises. Errors of ranks are returned.
    """
    if not fabric.hosts:
        raise SpecError(f"the ranks of fabric {str(fabric.spec)!r} are started by torchrun around xbench, not by it")
    groups = ProcessGroups()
    monitor: Monitor | None = None
    verdict: Verdict | None = None
    try:
        ranks, agents = _start_agents(groups, fabric, jobs, module, argument, directory)
        probes = Probes(link_fault=fabric.diagnose, disk_full=lambda: disk_full(directory))
        monitor = Monitor(ranks, agents, on_event, silence_s, probes, on_note=on_note)
        while (verdict := _poll(groups, monitor)) is None:
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        _end(groups, monitor)
        raise Interrupted("interrupted") from None
    except BaseException:
        _end(groups, monitor, drain=False)
        raise
    _end(groups, monitor)
    changed = fabric.changed()
    if changed is not None:
        verdict.warnings.append(changed)
        verdict.error = verdict.error or FabricError(changed, hint=UNDISTURBED)
    verdict.logs = [one.log for one in groups.started]
    return verdict


def _start_agents(
    groups: ProcessGroups, fabric: Fabric, jobs: int, module: str, argument: Path, directory: Path
) -> tuple[list[RankWatch], list[AgentWatch]]:
    """Start an agent for every job and host; the agents start the ranks."""
    ranks: list[RankWatch] = []
    agents: list[AgentWatch] = []
    for job, port in enumerate(fabric.free_ports(jobs)):
        for slot in fabric.hosts:
            env = rank_env(slot, jobs=jobs)
            argv = agent_command(fabric, slot, job, port, module, argument, directory)
            log = directory / f"job{job}-host{slot.index}.log"
            started = groups.start(slot.prefix, argv, env, log)
            agents.append(AgentWatch(slot.index, started.read_log, job))
            for local_rank in range(fabric.spec.ranks):
                reader = JournalReader(directory, job, slot.index * fabric.spec.ranks + local_rank)
                ranks.append(RankWatch(reader, slot.index, shared=jobs > 1))
    return ranks, agents


def agent_command(
    fabric: Fabric, slot: HostSlot, job: int, port: int, module: str, argument: Path, directory: Path
) -> list[str]:
    """Return the argv of the agent that starts a job's ranks on one host."""
    return [
        *AGENT,
        *(str(len(fabric.hosts)), str(fabric.spec.ranks), str(slot.index), fabric.hosts[0].address, str(port)),
        *(sys.executable, "-m", module, str(argument), "--job", str(job), "--directory", str(directory)),
    ]


def rank_env(slot: HostSlot, environ: Mapping[str, str] = os.environ, *, jobs: int = 1) -> dict[str, str]:
    """Return the environment of a host's processes: ours without a surrounding torchrun's variables, and the slot's.

    If several jobs share cores, a job's math threads sleep between parallel regions, unless the environment sets this.
    Spinning threads would occupy the cores during the other job's turn.
    """
    env = {name: value for name, value in environ.items() if name not in _TORCHRUN_VARIABLES}
    env |= {"PYTHONUNBUFFERED": "1", **slot.env}
    if slot.cores:
        env["XBENCH_CORES"] = json.dumps([list(cores) for cores in slot.cores])
        if jobs > 1 and any(len(cores) > 1 for cores in slot.cores):
            env.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return env


def disk_full(folder: Path) -> bool:
    """True if a folder's disk has no room for another log line or journal entry."""
    try:
        return shutil.disk_usage(folder).free < FULL_DISK_BYTES
    except OSError:
        return False


def _poll(groups: ProcessGroups, monitor: Monitor) -> Verdict | None:
    """Check our processes first, then everything else. Signals are held, so that no event is lost."""
    with interrupts_held():
        for started, watch in zip(groups.started, monitor.agents, strict=True):
            watch.code = started.process.poll()
        return monitor.poll()


def _end(groups: ProcessGroups, monitor: Monitor | None, *, drain: bool = True) -> None:
    """End every process, even if the user interrupts again. Then pass on the last events of the ranks."""
    with interrupts_held():
        # Each rank has a session of its own, which is unreachable once its agent was killed.
        ranks = monitor.ranks if monitor is not None else []
        groups.stop(rank.pid for rank in ranks if rank.pid is not None and rank.gone_s is None and pid_alive(rank.pid))
        if monitor is not None and drain:
            monitor.drain()


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _wait(processes: list[psutil.Process], seconds: float) -> None:
    """Wait until none of them runs. A zombie that its parent has not reaped counts as gone."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(_runs(one) for one in processes):
        time.sleep(0.02)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
