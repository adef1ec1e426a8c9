"""The engine of a Ray cluster: a slot is a CPU or a GPU of any of its nodes, an attempt a placement group.

    controller ── placement group (one bundle a worker, PACK) ── an actor a bundle ── a rank (`job_rank`)

Ray says where workers run and when something dies; ranks talk to one another as they do on one machine, over
torch.distributed, and not through Ray. All bundles are had at once or none (a gang), and PACK puts them on as few nodes
as it can. What is said and kept goes through the run's folder, **which has to be on a file system that all nodes
share** (each worker looks whether it sees its attempt, and says so if not); xbench has to be installed on every
node.

Nothing outlives its starter: actors are not detached, so the end of the controller ends them; the guard
(`launch_guard`) ties each rank to its actor, because a subprocess of an actor that is killed is otherwise left
(ray-project/ray#42861); and every rank holds a shared lock in the job's folder, so an attempt is over when nobody
holds that, and none is begun before.

A cluster that cannot be reached would end this very process after a minute (Ray's client does that), so another one
asks first, for as long as `REACH_S`. `ray://` addresses go through a proxy and are refused.
"""

from __future__ import annotations

import contextlib
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
from xbench.cluster.live.attempt import OVER, LiveJob, attempt_of, first_line, next_attempt
from xbench.cluster.live.ray_attempt import RayRunning
from xbench.errors import SpecError
from xbench.limits import last_line
from xbench.scratch import short_place
from xbench.spec import DeviceType

INSTALL = "pip install 'ray>=2.9'"
CONNECT_S = 5.0
REACH_S = 60.0
COUNT_S = 0.5
"""Greatest age [s] of the number of slots."""

ENDING_S = 60.0
SOCKET = "/ray/session_2026-11-25_09-33-59_123456_4194304/sockets/plasma_store.1"
"""Example of what Ray appends to its temporary folder: the path of a Unix socket, whose length is limited."""

_PROBE = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"


class RayEngine:
    """Slots of the Ray cluster at `address`, or of one that is started on this machine for as long as we run.

    `slots` is the most that are used; None: all CPUs, or GPUs, that the cluster has. Nodes may come and go.

    Raises SpecError where Ray is not installed, the address cannot be reached, or there are fewer slots; with `fewer`,
    that is no matter.
    """

    def __init__(
        self, slots: int | None, device: DeviceType, address: str | None, folder: Path, fewer: bool = False
    ) -> None:
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

    def start(self, job: LiveJob, folder: Path, slots: tuple[int, ...]) -> RayRunning:
        """Ask for one bundle a slot; which of the cluster's they are is Ray's matter.

        Raises SpecError for what cannot be built, and OSError.
        """
        # Ray shows each worker one GPU alone, which is number 0 there.
        program = attempt_of(job, (0,) * len(slots), self.device)
        folder.mkdir(parents=True, exist_ok=True)
        running = RayRunning(self.ray, program, next_attempt(folder, program).absolute())
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
        raise SpecError(f"a Ray cluster {where}: {first_line(str(error))}", hint="ray status says more") from None
