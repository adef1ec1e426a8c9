"""The engine of a Ray cluster: a slot is a CPU or a GPU of any of its nodes, an incarnation a placement group.

    controller ── placement group (one bundle a worker, PACK) ── an actor a bundle ── a rank (`job_rank`)

Ray says where workers run and when something dies; ranks talk to one another as they do on one machine, over
torch.distributed, and not through Ray. All bundles are had at once or none (a gang), and PACK puts them on as few nodes
as it can. What is said and kept goes through the run's folder, **which has to be on a file system that all nodes
share** (each worker looks whether it sees its incarnation, and says so if not); xbench has to be installed on every
node.

Nothing outlives its starter: actors are not detached, so the end of the controller ends them; the guard
(`runtime.launch_guard`) ties each rank to its actor, because a subprocess of an actor that is killed is otherwise left
(ray-project/ray#42861); and every rank holds a shared lock in the job's folder, so an incarnation is over when nobody
holds that, and none is begun before.

A cluster that cannot be reached would end this very process after a minute (Ray's client does that), so another one
asks first, for as long as `REACH_S`. `ray://` addresses go through a proxy and are refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import logging
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

import xbench
from xbench.cluster.live.engine import OVER, LiveJob, Look, State
from xbench.errors import SpecError
from xbench.runtime import monitor_log
from xbench.runtime.cluster import checkpoints
from xbench.runtime.cluster.incarnation import (
    LOCK,
    LOG,
    PROGRAM,
    STOP,
    Incarnation,
    errors_of,
    first_line,
    incarnation_of,
    next_incarnation,
    seen,
)
from xbench.runtime.cluster.local import MODULE, free
from xbench.runtime.journal import JournalReader
from xbench.runtime.launch_processes import GUARD
from xbench.scratch import short_place
from xbench.spec import DeviceType

INSTALL = "pip install 'ray>=2.9'"
CONNECT_S = 5.0
REACH_S = 60.0
PLACING_S = 120.0
"""How long an incarnation waits for the one before it to be gone, for its bundles, and for its actors."""

ENDING_S = 60.0
SOCKET = "/ray/session_2026-11-25_09-33-59_123456_4194304/sockets/plasma_store.1"
"""What Ray puts after its temporary folder, for an example: the path of a Unix socket, which may not be long."""

_PROBE = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"


class RayEngine:
    """Slots of the Ray cluster at `address`, or of one that is started on this machine for as long as we run.

    `slots` None: all CPUs, or GPUs, that the cluster has. Raises SpecError where Ray is not installed, the address
    cannot be reached, or there are fewer slots.
    """

    def __init__(self, slots: int | None, device: DeviceType, address: str | None, folder: Path) -> None:
        if importlib.util.find_spec("ray") is None:
            raise SpecError("engine 'ray' needs the Python package 'ray', which is not installed", hint=INSTALL)
        if address is not None:
            check_reachable(address)
        import ray

        self.ray: Any = ray
        self.device = device
        self._running: list[RayRunning] = []
        self._ours = not ray.is_initialized()
        if self._ours:
            _join(ray, slots, device, address)
        what = "GPU" if device == "cuda" else "CPU"
        there = int(ray.cluster_resources().get(what, 0))
        if not there or (slots or 1) > there:
            self.close()
            raise SpecError(
                f"{slots or 'some'} slots were asked for, and the Ray cluster has {there} {what}s",
                hint=f"--slots {there}" if there else "start it with --num-gpus, or leave out --device",
            )
        self._slots = slots or there

    @property
    def slots(self) -> int:
        """How many there are."""
        return self._slots

    def start(self, job: LiveJob, folder: Path, slots: tuple[int, ...]) -> RayRunning:
        """Ask for one bundle a slot; which of the cluster's they are is Ray's matter.

        Raises SpecError for what cannot be built, and OSError.
        """
        # Ray shows each worker one GPU alone, which is number 0 there.
        program = incarnation_of(job, (0,) * len(slots), self.device)
        folder.mkdir(parents=True, exist_ok=True)
        directory = next_incarnation(folder).absolute()
        (directory / PROGRAM).write_text(program.model_dump_json(indent=1), encoding="utf-8")
        running = RayRunning(self.ray, program, directory, checkpoints.kept_steps(folder, program.key))
        self._running = [one for one in self._running if not one.over] + [running]
        return running

    def close(self) -> None:
        """End everything that still runs, and leave the cluster; one that we started ends."""
        for one in self._running:
            one.kill()
        deadline_s = time.monotonic() + ENDING_S
        while any(one.look().state not in OVER for one in self._running) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        self._running = []
        if self._ours and self.ray.is_initialized():
            self.ray.shutdown()
            self._ours = False


class RayRunning:
    """One incarnation; see `xbench.cluster.live.engine.Running`. It gets on whenever it is looked at."""

    def __init__(self, ray: Any, program: Incarnation, directory: Path, kept: int) -> None:
        self.directory = directory
        self._ray = ray
        self._program = program
        self._journal = JournalReader(directory, 0, 0)
        self._group: Any = None
        self._ready: Any = None
        self._workers: list[Any] = []
        self._address: Any = None
        self._exits: list[Any] = []
        self._deadline_s = time.monotonic() + PLACING_S
        self._ending = False
        self._why = ""
        self._end: str | None = None
        self._look = Look("starting", kept, kept)

    @property
    def over(self) -> bool:
        """Whether `look` has said that it is over."""
        return self._look.state in OVER

    def look(self) -> Look:
        """As it stands."""
        if self.over:
            return self._look
        try:
            self._get_on()
        except self._ray.exceptions.RayError as error:
            self._fail(f"Ray: {first_line(str(error))}")
        # Before the journal is read: nothing is written after.
        gone = self._ending and free(self.directory.parent)
        for event in self._journal.poll():
            self._take(event)
        if gone:
            self._release()
            state: State = "failed"
            if self._end is not None and not self._why:
                state = "finished" if self._end == "finished" else "stopped"
            reason = "" if state != "failed" else self._reason()
            self._look = self._look._replace(state=state, reason=reason)
        return self._look

    def stop(self) -> None:
        """Ask it to keep a checkpoint after the step that it is in, and to end."""
        (self.directory / STOP).touch()

    def kill(self) -> None:
        """End every process of it, without a checkpoint."""
        if not self.over:
            self._fail("it was killed")

    def _get_on(self) -> None:
        """Lock, bundles, actors, ranks, exits: whatever is next, if it is there."""
        if self._ending:
            return
        if not self._exits and time.monotonic() > self._deadline_s:
            count = self._program.workers
            self._fail(f"the Ray cluster had no room for {count} workers within {PLACING_S:.0f} s")
        elif self._group is None:
            if free(self.directory.parent):
                self._ask_for_bundles()
        elif not self._workers:
            if self._is_there(self._ready):
                self._start_workers()
        elif not self._exits:
            if self._is_there(self._address):
                address = self._ray.get(self._address)
                told = (str(self.directory), self._program.workers, address, os.getcwd())
                self._exits = [worker.run.remote(rank, *told) for rank, worker in enumerate(self._workers)]
        else:
            done, left = self._ray.wait(self._exits, num_returns=len(self._exits), timeout=0)
            failed = [why for why in map(self._ray.get, done) if why]
            if failed:
                self._fail(failed[0])
            elif not left:
                self._ending = True

    def _ask_for_bundles(self) -> None:
        bundle = {"CPU": 1, "GPU": 1} if self._program.device == "cuda" else {"CPU": 1}
        self._group = self._ray.util.placement_group([bundle] * self._program.workers, strategy="PACK")
        self._ready = self._group.ready()

    def _start_workers(self) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        remote = self._ray.remote(Worker)
        for place in range(self._program.workers):
            where = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=place)
            gpus = int(self._program.device == "cuda")
            options = remote.options(num_cpus=1, num_gpus=gpus, max_restarts=0, scheduling_strategy=where)
            self._workers.append(options.remote())
        self._address = self._workers[0].address.remote()

    def _is_there(self, asked: Any) -> bool:
        return bool(self._ray.wait([asked], timeout=0)[0])

    def _fail(self, why: str) -> None:
        self._why = self._why or why
        self._ending = True
        for worker in self._workers:
            with contextlib.suppress(Exception):  # it is gone already
                self._ray.kill(worker)

    def _release(self) -> None:
        with contextlib.suppress(Exception):  # the cluster is gone
            for worker in self._workers:
                self._ray.kill(worker)
            if self._group is not None:
                self._ray.util.remove_placement_group(self._group)

    def _take(self, event: dict[str, Any]) -> None:
        if event["event"] == "end":
            self._end = event["how"]
        self._look = seen(self._look, event)

    def _reason(self) -> str:
        """What a rank died of, rather than what others then noticed."""
        errors = errors_of(self.directory, self._program.workers)
        if errors and self._why != "it was killed" and "was killed" not in self._why:
            rank, event = min(errors, key=lambda one: one[1]["t"])
            return f"rank {rank}: {event.get('said') or first_line(event['message'])}"
        return self._why or "it ended without saying how"


class Worker:
    """The actor of one bundle, on whatever node that is."""

    def address(self) -> str:
        """Of this node, as other nodes reach it."""
        import ray

        return str(ray.util.get_node_ip_address())

    def run(self, rank: int, directory: str, workers: int, address: str, cwd: str) -> str:
        """One rank, to its end: why it failed, or nothing."""
        incarnation = Path(directory)
        if not (incarnation / PROGRAM).is_file():
            return (
                f"{socket.gethostname()} does not see {directory}: --folder has to be on a file system that all nodes "
                "of the Ray cluster share"
            )
        lock = os.open(incarnation.parent / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return f"another incarnation lives in {incarnation.parent}"
        env = os.environ | _rank_env(rank, workers, address, self.address())
        command = [*GUARD, str(os.getpid()), sys.executable, "-m", MODULE, directory]
        with open(incarnation / LOG, "ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                cwd=cwd if os.path.isdir(cwd) else None,
                pass_fds=(lock,),
            )
        os.close(lock)  # the rank holds it now
        code = process.wait()
        return "" if code == 0 else f"rank {rank} {monitor_log.describe_exit(code)}"


def check_reachable(address: str) -> None:
    """Ask in a process of its own, and for so long at most. Raises SpecError."""
    told = f"there is no Ray cluster at {address!r}"
    if address != "auto":
        found = re.fullmatch(r"\[?([^\[\]/]+)\]?:(\d{1,5})", address)
        if found is None or "//" in address or not 0 < int(found[2]) < 65536:
            raise SpecError(f"{address!r} is no address of a Ray cluster", hint="write --address HOST:6379, or auto")
        try:
            socket.create_connection((found[1], int(found[2])), timeout=CONNECT_S).close()
        except OSError as error:
            why = (error.strerror or str(error) or "no answer").lower()
            raise SpecError(f"{told}: {why}", hint="ray start --head starts one, and says its address") from None
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _PROBE, address],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=REACH_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SpecError(f"{told}: no answer within {REACH_S:.0f} s", hint="ray status says what is wrong") from None
    if asked.returncode:
        lines = [line.strip() for line in asked.stderr.splitlines() if line.strip()]
        why = lines[-1][:200] if lines else "it ended without a word"
        raise SpecError(f"{told}: {why}", hint="ray status says what is wrong")


def _join(ray: Any, slots: int | None, device: DeviceType, address: str | None) -> None:
    """Connect, or start a cluster on this machine. Raises SpecError."""
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "include_dashboard": False}
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_TMPDIR", short_place(len(SOCKET)))
        root = str(Path(xbench.__file__).parents[1])  # its workers import us, installed or not
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(os.pathsep.join(paths).split(os.pathsep)))
        options |= {"address": "local"} | ({"num_cpus": slots} if slots and device == "cpu" else {})
    else:
        options = {key: value for key, value in options.items() if key != "include_dashboard"} | {"address": address}
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = f"at {address!r} cannot be joined" if address else "cannot be started here"
        raise SpecError(f"a Ray cluster {where}: {first_line(str(error))}", hint="ray status says more") from None


def _rank_env(rank: int, workers: int, address: str, own: str) -> dict[str, str]:
    """What torch.distributed reads, and the network device that this node is reached by."""
    found = {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": address,
        "PYTHONUNBUFFERED": "1",
    }
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == own for one in addresses):
            found |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), name)
    return found
