"""Horovod in this process: when it runs, with which settings, and for which models.

Horovod's thread contacts the other ranks every cycle, a thousand times a second, whether or not there is anything to
send. That would disturb another mode's block, or another job's turn. So Horovod is initialised when a mode that needs
it is attached and shut down when that is detached. That also allows two modes with different settings, which Horovod
reads at initialisation, in one comparison.

Models attached at once share it, as two jobs in turns do. `enter` numbers them, and Horovod is shut down when the last
has left.

All ranks start it together. They agree on whether all can, rank 0's rendezvous server forgets the last rendezvous, and
all ranks get its port through torch.distributed. If the user's own script has initialised Horovod, it is used as it is,
and stays initialised.
"""

from __future__ import annotations

import atexit
import importlib
import itertools
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from xbench import horovod
from xbench.errors import RunError, UsageError

SENT_BY_HOROVOD = (torch.float16, torch.float32, torch.float64)
SERVER = (sys.executable, "-m", "xbench.horovod.rendezvous")
SERVER_S = 60.0
"""Longest start [s] of the rendezvous server, which is the time of Python's imports."""


def loaded() -> Any:
    """The module `horovod.torch`. Raises UsageError if it is missing or built for another torch."""
    reason = horovod.obstacle()
    if reason is None:
        try:
            return importlib.import_module("horovod.torch")
        except (ImportError, OSError) as error:
            if horovod.folder() is None:
                raise
            message = str(error).splitlines()[0] if str(error) else type(error).__name__
            installed = torch.__version__.partition("+")[0]
            same = horovod.built_against() == installed
            reason = (
                f"Horovod does not load ({message})" if same else horovod.mismatch(horovod.built_against(), installed)
            )
    raise UsageError(f"{reason}: {horovod.INSTALL} builds it", hint=horovod.INSTALL)


class Server:
    """The rendezvous server of this job, a process of rank 0; it ends with rank 0, as its input does."""

    def __init__(self, position: horovod.RankPosition) -> None:
        address = os.environ.get("MASTER_ADDR", "127.0.0.1")
        words = [*SERVER, str(position.cross_size), str(position.local_size), address]
        env = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
        root = str(Path(__file__).parents[2])  # holds the package xbench: the server starts in any folder
        env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
        )
        self.port = self._answer()
        atexit.register(self.close)

    def clear(self) -> None:
        """Forget the last rendezvous. Raises RunError if the server has ended."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(b"again\n")
            self._process.stdin.flush()
        except OSError:
            raise RunError("Horovod's rendezvous server has ended") from None
        self.port = self._answer()

    def close(self) -> None:
        """End the server. Safe to call twice."""
        self._process.kill()
        self._process.wait()

    def _answer(self) -> int:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], SERVER_S)
        line = self._process.stdout.readline() if ready else b""
        if line.strip().isdigit():
            return int(line)
        self._process.kill()
        _, error_output = self._process.communicate()
        lines = error_output.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"it was silent for {SERVER_S:.0f} s"
        raise RunError(f"Horovod's rendezvous server did not start: {reason}")


class World:
    """Horovod of this process. There is one per process, `WORLD`."""

    def __init__(self) -> None:
        self.settings: horovod.Settings | None = None
        """Settings of the running Horovod; None if it is not running."""
        self.given = False
        """True if it was initialised before xbench, which must not shut it down."""
        self.users: set[int] = set()
        """Numbers of the attached models."""
        self.at_start: Callable[[int], None] | None = None
        """Called after each start with the kernel's id of the thread that runs Horovod's collectives."""
        self._server: Server | None = None

    def enter(self, settings: horovod.Settings) -> tuple[Any, int]:
        """Return the module `horovod.torch` and the lowest free number, for a model that is attached. Collective.

        Raises as `start` does, and UsageError if models are attached with other settings.
        """
        if self.users and self.settings not in (None, settings):
            raise UsageError(
                f"Horovod runs with {self.settings} for a model that is attached, and has one setting in a process",
                hint="detach that model, or use the same settings",
            )
        hvd = self.start(settings)
        number = next(number for number in itertools.count() if number not in self.users)
        self.users.add(number)
        return hvd, number

    def leave(self, number: int) -> None:
        """Give a model's number back, and stop Horovod after the last. Collective, as `stop` is."""
        self.users.discard(number)
        if not self.users:
            self.stop()

    def start(self, settings: horovod.Settings) -> Any:
        """The module `horovod.torch`, initialised with these settings on every rank. Collective.

        Raises UsageError on all ranks if one lacks it, and RunError if the ranks cannot meet.
        """
        failure: Exception | None = None
        hvd: Any = None
        try:
            hvd = loaded()
            if settings != horovod.Settings() and not horovod.is_own_build():
                raise UsageError(
                    "this Horovod cannot be initialised twice where its settings are not its defaults: "
                    f"{horovod.INSTALL} builds one that can"
                )
        except Exception as error:
            failure = error
        if hvd is not None and self.settings is None and hvd.is_initialized():
            self.given = True
        if self.given or self.settings == settings:
            return hvd
        self.stop()
        position = horovod.RankPosition.of(dist.get_rank(), dist.get_world_size(), os.environ)
        port = 0
        if failure is None and position.rank == 0:
            try:
                port = self._open(position)
            except Exception as error:
                failure = error
        answers: list[Any] = [None] * position.size
        dist.all_gather_object(answers, (str(failure) if failure is not None else None, port))
        if failure is not None:
            raise failure
        for rank, (reason, _) in enumerate(answers):
            if reason is not None:
                raise UsageError(f"rank {rank}: {reason}")
        self._initialise(hvd, position, answers[0][1], settings)
        return hvd

    def _open(self, position: horovod.RankPosition) -> int:
        if self._server is None:
            self._server = Server(position)
        else:
            self._server.clear()
        return self._server.port

    def _initialise(self, hvd: Any, position: horovod.RankPosition, port: int, settings: horovod.Settings) -> None:
        address = os.environ.get("MASTER_ADDR", "127.0.0.1")
        for name, value in horovod.environment(position, address, port, settings, os.environ).items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        before = _threads()
        hvd.init()
        if hvd.size() != position.size or hvd.rank() != position.rank:
            raise RunError(
                f"Horovod counts {hvd.size()} ranks and calls this one {hvd.rank()}, which is {position.rank} of "
                f"{position.size}"
            )
        self.settings = settings
        started = _threads() - before
        if self.at_start is not None and started:
            self.at_start(min(started))  # the first that Horovod starts; its Gloo's follow

    def stop(self) -> None:
        """Shut Horovod down, if xbench started it. Every rank must call it, after its last collective."""
        if self.settings is None:
            return
        self.settings = None
        importlib.import_module("horovod.torch").shutdown()


WORLD = World()


def _threads() -> set[int]:
    try:
        return {int(entry.name) for entry in Path("/proc/self/task").iterdir()}
    except OSError:
        return set()
