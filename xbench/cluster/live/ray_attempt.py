"""One attempt on a Ray cluster: a placement group, an actor a bundle, a rank an actor.

    waits for the attempt before it ── bundles ── actors ── ranks ── (a worker is gone: whose fault?) ── over

It waits for bundles as long as it takes: whether that is worth while is the controller's matter, which reads how many
slots there are and kills what does not fit.

**A worker that is gone** is either a crash of the job, or the loss of a node. The other ranks notice at once, Ray
notices a lost node only when it has missed its heartbeats (14 s by default). So the verdict waits until Ray has told of
every worker, up to `VERDICT_S`; where a node of one is dead, the attempt is `lost` and not `failed`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from xbench.cluster.live.attempt import (
    LOCK,
    LOG,
    PROGRAM,
    AttemptProgress,
    AttemptSpec,
    State,
    Watched,
    errors_of,
    first_line,
)
from xbench.cluster.live.local_engine import MODULE, free
from xbench.fabrics.cluster import interface_of
from xbench.fabrics.fabric import rank_environment
from xbench.launch.agent import describe_exit, lost_peers, rank_variables
from xbench.launch_guard import GUARD
from xbench.rank.events import RankFailed
from xbench.text import counted

PLACING_S = 120.0
"""Longest time [s] that actors may take to start once their bundles are there."""

PATIENCE_S = 10.0
"""Time [s] that an attempt waits for its bundles before it says so."""

VERDICT_S = 90.0
"""Longest time [s] that Ray may take to notice that a node is gone."""

KILLED = "it was killed"
RAY = "Ray: "
"""Prefix of what Ray, and not the worker itself, says of a worker."""


class RayRunning(Watched):
    """One attempt; see `Running`. It gets on whenever it is looked at."""

    def __init__(self, ray: Any, program: AttemptSpec, directory: Path) -> None:
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
        """By rank, what became of workers that failed."""
        self._verdict_s: float | None = None
        """When a crash is a crash at last; None while no worker has failed."""
        self._certain = False
        """True once a rank has died by itself."""
        self._silent = False
        """True once a worker could not be reached, which may come of the loss of its node."""
        self._lost = ""
        self._why = ""
        self._ending = False

    def look(self) -> AttemptProgress:
        """See `Running`."""
        if self.over:
            return self._look
        try:
            self._get_on()
        except self._ray.exceptions.RayError as error:
            self._look_for_dead_nodes()
            self._fail(f"{RAY}{first_line(str(error))}")
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
                why = f"{RAY}{first_line(str(error))}"
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
        errors = errors_of(self.directory, self._program.workers)
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
        with contextlib.suppress(Exception):  # the cluster is gone
            for worker in self._workers:
                self._ray.kill(worker)
            if self._group is not None:
                self._ray.util.remove_placement_group(self._group)

    def _conclude(self) -> None:
        failed = bool(self._why or self._whys)
        state: State = "lost" if self._lost else "failed"
        if self._end is not None and not failed:
            state = self._end
        reason = self._reason() if state == "failed" else self._lost
        kept_steps = max(self._kept(), self._look.kept_steps)
        self._look = self._look._replace(state=state, kept_steps=kept_steps, reason=reason)

    def _reason(self) -> str:
        """Error that a rank died of, rather than the errors that others then noticed."""
        if self._why == KILLED:
            return KILLED
        errors = errors_of(self.directory, self._program.workers)
        of_ray = next((why for why in self._whys.values() if why.startswith(RAY)), self._why)
        return self._cause() or of_ray or (_said(errors) if errors else "it ended without saying how")


def _said(errors: list[tuple[int, RankFailed]]) -> str:
    """The first of these errors."""
    rank, event = min(errors, key=lambda one: one[1].t)
    return f"rank {rank}: {event.said or first_line(event.message)}"


class Worker:
    """The actor of one bundle, on whatever node that is."""

    def place(self) -> tuple[str, str]:
        """Address of this node, as other nodes reach it, and Ray's name of it."""
        import ray

        return str(ray.util.get_node_ip_address()), str(ray.get_runtime_context().get_node_id())

    def run(self, rank: int, directory: str, workers: int, address: str, cwd: str) -> str:
        """One rank, to its end: why it failed, or nothing."""
        attempt = Path(directory)
        if not (attempt / PROGRAM).is_file():
            return (
                f"{socket.gethostname()} does not see {directory}: --folder has to be on a file system that all nodes "
                "of the Ray cluster share"
            )
        lock = os.open(attempt.parent / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return f"another attempt lives in {attempt.parent}"
        env = {**os.environ, **rank_variables(workers, 1, rank, 0, address, "0"), "PYTHONUNBUFFERED": "1"}
        interface = interface_of(self.place()[0])  # by which the other nodes reach this one
        env |= rank_environment(interface, ()) if interface is not None else {}
        command = [*GUARD, str(os.getpid()), sys.executable, "-m", MODULE, directory]
        with open(attempt / LOG, "ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                cwd=cwd if os.path.isdir(cwd) else None, pass_fds=(lock,)
            )  # fmt: skip
        os.close(lock)  # the rank holds it now
        code = process.wait()
        return "" if code == 0 else f"rank {rank} {describe_exit(code)}"
