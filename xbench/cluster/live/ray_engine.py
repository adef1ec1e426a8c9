"""The engine of a Ray cluster: a slot is a CPU or a GPU of any of its nodes, an attempt a placement group.

    controller ── placement group (one bundle a worker, PACK) ── an actor a bundle ── a rank (`job_rank`)

Ray says where workers run and when something dies; ranks talk to one another as they do on one machine, over
torch.distributed. All bundles are had at once or none (a gang), and PACK puts them on as few nodes as it can. What is
said and kept goes through the run's folder, **which has to be on a file system that all nodes share** (each worker
looks whether it sees its attempt); xbench has to be installed on every node.

Nothing outlives its starter: actors are not detached, so the end of the controller ends them; the guard
(`launch_guard`) ties each rank to its actor, because a subprocess of an actor that is killed is otherwise left
(ray-project/ray#42861); and every rank holds a shared lock in the job's folder, so an attempt is over when nobody
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

import xbench
from xbench.cluster.live import attempt
from xbench.cluster.live.jobs_file import JobEntry
from xbench.cluster.live.local_engine import MODULE, free
from xbench.errors import SpecError
from xbench.fabrics.cluster import interface_of
from xbench.fabrics.fabric import rank_environment
from xbench.launch.agent import describe_exit, lost_peers, rank_variables
from xbench.launch_guard import GUARD
from xbench.limits import last_line
from xbench.rank.events import RankFailed
from xbench.scratch import short_place
from xbench.spec import DeviceType
from xbench.text import counted

INSTALL = "pip install 'ray>=2.9'"
CONNECT_S = 5.0
REACH_S = 60.0
COUNT_S = 0.5
"""Greatest age [s] of the number of slots."""

ENDING_S = 60.0
SOCKET = "/ray/session_2026-11-25_09-33-59_123456_4194304/sockets/plasma_store.1"
"""Example of what Ray appends to its temporary folder: the path of a Unix socket, whose length is limited."""

PLACING_S = 120.0
"""Longest time [s] that actors may take to start once their bundles are there."""

PATIENCE_S = 10.0
"""Time [s] that an attempt waits for its bundles before it says so."""

VERDICT_S = 90.0
"""Longest time [s] that Ray may take to notice that a node is gone."""

KILLED = "it was killed"
RAY = "Ray: "
"""Prefix of what Ray, and not the worker itself, says of a worker."""

_PROBE = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"


class RayEngine:
    """Slots of the Ray cluster at `address`, or of one that is started on this machine for as long as we run.

    `slots` is the most that are used; None: all CPUs, or GPUs, that the cluster has. Nodes may come and go.

    Raises SpecError where Ray is not installed, the address cannot be reached, or there are fewer slots; with `fewer`,
    that is no matter.
    """

    def __init__(self, slots: int | None, device: DeviceType, address: str | None, fewer: bool = False) -> None:
        if importlib.util.find_spec("ray") is None:
            raise SpecError("engine 'ray' needs the Python package 'ray', which is not installed", hint=INSTALL)
        if address is not None:
            check_reachable(address)
        # What raylets say of themselves goes to the driver's stdout, whatever log_to_driver says.
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
        import ray

        self.ray: Any = ray
        self.device = device
        self._running: list[RayRunning] = []
        self._ours = not ray.is_initialized()
        if self._ours:
            _join(ray, slots, device, address)
        self._what = what = "GPU" if device == "cuda" else "CPU"
        there = self._slots = int(ray.cluster_resources().get(what, 0))
        self._counted_s = time.monotonic()
        if (slots or 1) > there and not fewer:
            self.close()
            raise SpecError(
                f"{slots or 'some'} slots were asked for, and the Ray cluster has {there} {what}s",
                hint=f"--slots {there}" if there else "start it with --num-gpus, or leave out --device",
            )
        self._most = slots

    @property
    def slots(self) -> int:
        """Number of slots on the nodes that Ray believes alive, up to the limit."""
        if time.monotonic() - self._counted_s > COUNT_S:
            with contextlib.suppress(self.ray.exceptions.RayError):  # no answer is no news
                self._slots = int(self.ray.cluster_resources().get(self._what, 0))
            self._counted_s = time.monotonic()
        return self._slots if self._most is None else min(self._most, self._slots)

    def start(self, job: JobEntry, folder: Path, slots: tuple[int, ...]) -> RayRunning:
        """Ask for one bundle a slot; which of the cluster's they are is Ray's matter.

        Raises SpecError for what cannot be built, and OSError.
        """
        # Ray shows each worker one GPU alone, which is number 0 there.
        program = attempt.attempt_of(job, (0,) * len(slots), self.device)
        folder.mkdir(parents=True, exist_ok=True)
        running = RayRunning(self.ray, program, attempt.next_attempt(folder, program).absolute())
        self._running = [one for one in self._running if not one.over] + [running]
        return running

    def close(self) -> None:
        """End everything that still runs, and leave the cluster; one that we started ends."""
        for one in self._running:
            one.kill()
        deadline_s = time.monotonic() + ENDING_S
        while any(one.look().state not in attempt.OVER for one in self._running) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        self._running = []
        if self._ours and self.ray.is_initialized():
            self.ray.shutdown()
            self._ours = False


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
    ask = [sys.executable, "-c", _PROBE, address]
    try:
        asked = subprocess.run(ask, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=REACH_S)
    except subprocess.TimeoutExpired:
        raise SpecError(f"{told}: no answer within {REACH_S:.0f} s", hint="ray status says what is wrong") from None
    if asked.returncode:
        why = last_line(asked.stderr) or "it ended without a word"
        raise SpecError(f"{told}: {why}", hint="ray status says what is wrong")


def _join(ray: Any, slots: int | None, device: DeviceType, address: str | None) -> None:
    """Connect, or start a cluster on this machine. Raises SpecError."""
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "address": address or "local"}
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_TMPDIR", short_place(len(SOCKET)))
        root = str(Path(xbench.__file__).parents[1])  # its workers import us, installed or not
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(os.pathsep.join(paths).split(os.pathsep)))
        options |= {"include_dashboard": False} | ({"num_cpus": slots} if slots and device == "cpu" else {})
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = f"at {address!r} cannot be joined" if address else "cannot be started here"
        raise SpecError(
            f"a Ray cluster {where}: {attempt.first_line(str(error))}", hint="ray status says more"
        ) from None


class RayRunning(attempt.Running):
    """One attempt; see `Running`. It gets on whenever it is looked at.

        waits for the attempt before it ── bundles ── actors ── ranks ── (a worker is gone: whose fault?) ── over

    It waits for bundles as long as it takes: whether that is worth while is the controller's matter, which reads how
    many slots there are and kills what does not fit.

    A worker that is gone is either a crash of the job, or the loss of a node. The other ranks notice at once, Ray
    notices a lost node only when it has missed its heartbeats (14 s by default). So the verdict waits until Ray has
    told of every worker, up to `VERDICT_S`; where a node of one is dead, the attempt is `lost` and not `failed`.
    """

    def __init__(self, ray: Any, program: attempt.AttemptSpec, directory: Path) -> None:
        super().__init__(directory, program)
        self._ray = ray
        self._group: Any = None
        self._ready: Any = None
        self._workers: list[Any] = []
        self._places: list[Any] = []
        """Futures of each worker's (address, node)."""
        self._nodes: set[str] = set()
        """Nodes of its workers; until these are known, all that were alive when it asked for bundles."""
        self._exits: list[Any] = []
        self._begun_s = time.monotonic()
        self._deadline_s = 0.0
        self._whys: dict[int, str] = {}
        """The outcome of each worker that failed, by rank."""
        self._verdict_s: float | None = None
        """The time from which a failure counts as a crash; None while no worker has failed."""
        self._certain = False
        """True once a rank has died by itself."""
        self._silent = False
        """True once a worker could not be reached, which may come of the loss of its node."""
        self._lost = ""
        self._why = ""
        self._ending = False

    def look(self) -> attempt.AttemptProgress:
        """See `Running`."""
        if self.over:
            return self._look
        try:
            self._get_on()
        except self._ray.exceptions.RayError as error:
            self._look_for_dead_nodes()
            self._fail(f"{RAY}{attempt.first_line(str(error))}")
        # Before the journal is read: nothing is written after.
        gone = self._ending and free(self.directory.parent)
        self._read()
        if gone:
            self._release()
            self._conclude()
        elif self._look.state == "starting":
            self._look = self._look._replace(reason=self._waiting())
        return self._look

    def kill(self) -> None:
        """See `Running`."""
        if not self.over:
            self._fail(KILLED)

    def _get_on(self) -> None:
        """Lock, bundles, actors, ranks, exits: whatever is next, if it is there."""
        if self._ending:
            return
        if self._group is None:
            if free(self.directory.parent):
                self._ask_for_bundles()
        elif not self._workers:
            if self._are_there([self._ready]):
                self._start_workers()
        elif not self._exits:
            if self._are_there(self._places):
                self._start_ranks()
            elif time.monotonic() > self._deadline_s:
                self._fail(f"its workers did not start within {PLACING_S:.0f} s")
        else:
            self._judge()

    def _ask_for_bundles(self) -> None:
        self._nodes = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        bundle = {"CPU": 1, "GPU": 1} if self._program.device == "cuda" else {"CPU": 1}
        self._group = self._ray.util.placement_group([bundle] * self._program.workers, strategy="PACK")
        self._ready = self._group.ready()

    def _start_workers(self) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._deadline_s = time.monotonic() + PLACING_S
        remote = self._ray.remote(Worker)
        for place in range(self._program.workers):
            where = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=place)
            gpus = int(self._program.device == "cuda")
            options = remote.options(num_cpus=1, num_gpus=gpus, max_restarts=0, scheduling_strategy=where)
            self._workers.append(options.remote())
        self._places = [worker.place.remote() for worker in self._workers]

    def _start_ranks(self) -> None:
        places = [self._ray.get(place) for place in self._places]
        self._nodes = {node for _, node in places}
        told = (str(self.directory), self._program.workers, places[0][0], os.getcwd())
        self._exits = [worker.run.remote(rank, *told) for rank, worker in enumerate(self._workers)]

    def _judge(self) -> None:
        """See which workers have ended, and how; once one has failed, decide between a crash and a lost node."""
        _, left = self._ray.wait(self._exits, num_returns=len(self._exits), timeout=0)
        for rank, exit_ in enumerate(self._exits):
            if exit_ in left or rank in self._whys:
                continue
            try:
                why = self._ray.get(exit_)
            except self._ray.exceptions.RayError as error:
                why = f"{RAY}{attempt.first_line(str(error))}"
                # Nobody answers there, and Ray does not know yet what that means.
                self._silent |= isinstance(error, getattr(self._ray.exceptions, "ActorUnavailableError", ()))
            if why:
                self._whys[rank] = why
                self._certain = self._cause() is not None
                self._verdict_s = self._verdict_s or time.monotonic() + VERDICT_S
        if self._verdict_s is None:
            self._ending = not left
            return
        self._look_for_dead_nodes()
        if self._lost or self._certain or not (left or self._silent) or time.monotonic() > self._verdict_s:
            self._kill_workers()

    def _cause(self) -> str | None:
        """Error that a rank died of by itself; None where all that is known may be the effect of a lost node."""
        errors = attempt.errors_of(self.directory, self._program.workers)
        causes = [(rank, event) for rank, event in errors if not lost_peers(event.message)]
        if causes:
            return _said(causes)
        told = {rank for rank, _ in errors}
        return next((why for rank, why in self._whys.items() if rank not in told and not why.startswith(RAY)), None)

    def _look_for_dead_nodes(self) -> None:
        dead = [node for node in self._ray.nodes() if node["NodeID"] in self._nodes and not node["Alive"]]
        if dead:
            addresses = " and ".join(sorted({str(node.get("NodeManagerAddress", "?")) for node in dead}))
            self._lost = f"the Ray cluster has lost a node ({addresses})"

    def _are_there(self, asked: list[Any]) -> bool:
        return not self._ray.wait(asked, num_returns=len(asked), timeout=0)[1]

    def _waiting(self) -> str:
        """Clause that says what it waits for; empty until the wait is long."""
        if self._workers or self._ending or time.monotonic() - self._begun_s < PATIENCE_S:
            return ""
        if self._group is None:
            return "waits until the processes that it ran as before are gone"
        return f"waits: the Ray cluster has no room for {counted(self._program.workers, 'worker')} now"

    def _fail(self, why: str) -> None:
        self._why = self._why or why
        self._kill_workers()

    def _kill_workers(self) -> None:
        self._ending = True
        for worker in self._workers:
            with contextlib.suppress(Exception):  # it is gone already
                self._ray.kill(worker)

    def _release(self) -> None:
        self._kill_workers()
        with contextlib.suppress(Exception):  # the cluster is gone
            if self._group is not None:
                self._ray.util.remove_placement_group(self._group)

    def _conclude(self) -> None:
        failed = bool(self._why or self._whys)
        state: attempt.State = "lost" if self._lost else "failed"
        if self._end is not None and not failed:
            state = self._end
        reason = self._reason() if state == "failed" else self._lost
        kept_steps = max(self._kept(), self._look.kept_steps)
        self._look = self._look._replace(state=state, kept_steps=kept_steps, reason=reason)

    def _reason(self) -> str:
        """Error that a rank died of, rather than the errors that others then noticed."""
        if self._why == KILLED:
            return KILLED
        errors = attempt.errors_of(self.directory, self._program.workers)
        of_ray = next((why for why in self._whys.values() if why.startswith(RAY)), self._why)
        return self._cause() or of_ray or (_said(errors) if errors else "it ended without saying how")


def _said(errors: list[tuple[int, RankFailed]]) -> str:
    """The first of these errors."""
    rank, event = min(errors, key=lambda one: one[1].t)
    return f"rank {rank}: {event.said or attempt.first_line(event.message)}"


class Worker:
    """The actor of one bundle, on whatever node that is."""

    def place(self) -> tuple[str, str]:
        """Address of this node, as other nodes reach it, and Ray's name of it."""
        import ray

        return str(ray.util.get_node_ip_address()), str(ray.get_runtime_context().get_node_id())

    def run(self, rank: int, directory: str, workers: int, address: str, cwd: str) -> str:
        """One rank, to its end: why it failed, or nothing."""
        folder = Path(directory)
        if not (folder / attempt.PROGRAM).is_file():
            return (
                f"{socket.gethostname()} does not see {directory}: --folder has to be on a file system that all nodes "
                "of the Ray cluster share"
            )
        lock = os.open(folder.parent / attempt.LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return f"another attempt lives in {folder.parent}"
        env = {**os.environ, **rank_variables(workers, 1, rank, 0, address, "0"), "PYTHONUNBUFFERED": "1"}
        interface = interface_of(self.place()[0])  # by which the other nodes reach this one
        env |= rank_environment(interface, ()) if interface is not None else {}
        command = [*GUARD, str(os.getpid()), sys.executable, "-m", MODULE, directory]
        with open(folder / attempt.LOG, "ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                cwd=cwd if os.path.isdir(cwd) else None, pass_fds=(lock,)
            )  # fmt: skip
        os.close(lock)  # the rank holds it now
        code = process.wait()
        return "" if code == 0 else f"rank {rank} {describe_exit(code)}"
