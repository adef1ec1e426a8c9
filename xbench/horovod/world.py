"""Horovod in this process: when it runs, and a process group over its asynchronous all-reduce.

Horovod's thread contacts the other ranks every cycle, a thousand times a second, whether or not there is anything to
send. That would disturb another mode's block, or another job's turn. So Horovod is initialised when a mode that needs
it is attached and shut down when that is detached. That also allows two modes with different settings, which Horovod
reads at initialisation, in one comparison.

All ranks start it together. They agree on whether all can, rank 0's rendezvous server forgets the last rendezvous, and
all ranks get its port through torch.distributed. If the user's own script has initialised Horovod, it is used as it is,
and stays initialised.

`--backend horovod` runs xbench's schedules, and measures collectives, over `HorovodGroup`. An all-reduce of floats is
`horovod.torch.allreduce_async_(tensor, name, op=Sum)`: it is enqueued at once, negotiated with the other ranks in the
next cycle of Horovod's thread, and sent by its Gloo (or NCCL). There is no fusion (`options.UNFUSED`), so that each
bucket is one collective, as planned. Other operations (gathers, broadcasts, maxima) go to torch's own group and take
its time: no schedule needs them in a step.

Ranks find each other's tensors by name. A name that Horovod has seen before costs one bit in the next negotiation
instead of a whole request. So a piece of memory keeps its first name: buckets are the same memory in every step. Names
are numbered in the order of first launches, which is the same on every rank, as torch's own groups require, too. A
storage is held by a weak reference, so that its address is not mistaken for another's.

`horovod.torch.synchronize` would wait in a loop that never sleeps, on the core that Horovod's own threads need. Waiting
here alternates polling and sleeping.
"""

from __future__ import annotations

import atexit
import importlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from xbench.errors import RunError, UsageError
from xbench.horovod import INSTALL, built_against, folder, is_own_build, mismatch, obstacle
from xbench.horovod.options import UNFUSED, RankPosition, Settings, environment

BACKEND = "horovod"
POLL_S = 50e-6
SENT_BY_HOROVOD = (torch.float16, torch.float32, torch.float64)
SERVER = (sys.executable, "-m", "xbench.horovod.rendezvous")
SERVER_S = 60.0
"""Longest start [s] of the rendezvous server, which is the time of Python's imports."""


def loaded() -> Any:
    """The module `horovod.torch`. Raises UsageError if it is missing or built for another torch."""
    reason = obstacle()
    if reason is None:
        try:
            return importlib.import_module("horovod.torch")
        except (ImportError, OSError) as error:
            if folder() is None:
                raise
            message = str(error).splitlines()[0] if str(error) else type(error).__name__
            installed = torch.__version__.partition("+")[0]
            same = built_against() == installed
            reason = f"Horovod does not load ({message})" if same else mismatch(built_against(), installed)
    raise UsageError(f"{reason}: {INSTALL} builds it", hint=INSTALL)


class Server:
    """The rendezvous server of this job, a process of rank 0; it ends with rank 0, as its input does."""

    def __init__(self, position: RankPosition) -> None:
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
        self.settings: Settings | None = None
        """Settings of the running Horovod; None if it is not running."""
        self.given = False
        """True if it was initialised before xbench, which must not shut it down."""
        self.at_start: Callable[[list[int]], None] | None = None
        """Called after each start with the kernel's ids of Horovod's threads, its own first."""
        self._server: Server | None = None

    def start(self, settings: Settings) -> Any:
        """The module `horovod.torch`, initialised with these settings on every rank. Collective.

        Raises UsageError on all ranks if one lacks it, and RunError if the ranks cannot meet.
        """
        failure: Exception | None = None
        hvd: Any = None
        try:
            hvd = loaded()
            if settings != Settings() and not is_own_build():
                raise UsageError(
                    f"this Horovod cannot be initialised twice where its settings are not its defaults: {INSTALL} "
                    "builds one that can"
                )
        except Exception as error:
            failure = error
        if hvd is not None and self.settings is None and hvd.is_initialized():
            self.given = True
        if self.given or self.settings == settings:
            return hvd
        self.stop()
        position = RankPosition.of(dist.get_rank(), dist.get_world_size(), os.environ)
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

    def _open(self, position: RankPosition) -> int:
        if self._server is None:
            self._server = Server(position)
        else:
            self._server.clear()
        return self._server.port

    def _initialise(self, hvd: Any, position: RankPosition, port: int, settings: Settings) -> None:
        address = os.environ.get("MASTER_ADDR", "127.0.0.1")
        for name, value in environment(position, address, port, settings, os.environ).items():
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
        if self.at_start is not None:
            self.at_start(sorted(_threads() - before))

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


class Names:
    """Horovod's name of each piece of memory, equal on every rank that launches in the same order."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int, torch.dtype], tuple[Any, str]] = {}
        self._given = 0

    def of(self, tensor: Tensor) -> str:
        """The earlier name of this memory, else the next one."""
        ref: Any = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        key = (int(ref.cdata), int(tensor.storage_offset()), tensor.numel(), tensor.dtype)
        known = self._known.get(key)
        if known is not None and not known[0].expired():
            return known[1]
        if len(self._known) > 4096:
            self._known = {key: value for key, value in self._known.items() if not value[0].expired()}
        name = f"xbench.{self._given}"
        self._given += 1
        self._known[key] = ref, name
        return name


class HorovodWork(dist.Work):
    """One or more of Horovod's handles in progress."""

    def __init__(self, hvd: Any, tensors: Sequence[Tensor], handles: Sequence[int]) -> None:
        super().__init__()
        self._hvd = hvd
        self._tensors = list(tensors)
        self._handles = list(handles)
        self._lock = threading.Lock()

    def is_completed(self) -> bool:
        """True if `wait` would return at once."""
        if not self._lock.acquire(blocking=False):  # a thread waits, and takes each handle when it has arrived
            return False
        try:
            return all(self._hvd.poll(handle) for handle in self._handles)
        finally:
            self._lock.release()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return on completion. Raises Horovod's HorovodInternalError."""
        with self._lock:
            while self._handles:
                if not self._hvd.poll(self._handles[0]):
                    time.sleep(POLL_S)
                    continue
                self._hvd.synchronize(self._handles.pop(0))
        return True

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """A future of the reduced tensors, set on completion by a thread that waits, for timelines."""
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future()

        def arrived() -> None:
            try:
                self.wait()
            except Exception as error:
                future.set_exception(error)  # type: ignore[arg-type]
            else:
                future.set_result(self._tensors)

        threading.Thread(target=arrived, name="horovod-future", daemon=True).start()
        return future


class HorovodGroup(dist.ProcessGroup):
    """Process group over Horovod. `under`: torch's group of the same ranks."""

    def __init__(self, rank: int, size: int, under: dist.ProcessGroup) -> None:
        super().__init__(rank, size)
        self._size = size
        self._under = under
        self._names = Names()

    def size(self) -> int:
        """Number of ranks."""
        return self._size

    def getBackendName(self) -> str:
        """Name in messages of torch."""
        return BACKEND

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        """Sum floats by Horovod; forward anything else to torch's group."""
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        opts = opts or dist.AllreduceOptions()
        if opts.reduceOp != dist.ReduceOp.SUM or any(tensor.dtype not in SENT_BY_HOROVOD for tensor in tensors):
            return self._under.allreduce(tensors, opts)
        return self._send(tensors)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> dist.Work:
        """Launch the tensors one after the other. Horovod negotiates them together, but has no coalesced collective.

        Their names are new each time if the tensors are.
        """
        return self._send(tensors)

    def _send(self, tensors: Sequence[Tensor]) -> HorovodWork:
        hvd = WORLD.start(UNFUSED)
        handles = [hvd.allreduce_async_(t, name=self._names.of(t), op=hvd.Sum) for t in tensors]
        return HorovodWork(hvd, tensors, handles)

    def broadcast(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        """Forward to torch's group."""
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        return self._under.broadcast(tensors, opts or dist.BroadcastOptions())

    def allgather(self, output: Any, tensors: Any, opts: Any = None) -> dist.Work:
        """Forward to torch's group."""
        return self._under.allgather(output, tensors, *([opts] if opts is not None else []))

    def barrier(self, opts: Any = None) -> dist.Work:
        """Forward to torch's group."""
        return self._under.barrier(*([opts] if opts is not None else []))

    def send(self, tensors: list[Tensor], dst: int, tag: int) -> dist.Work:
        """Forward to torch's group."""
        return self._under.send(tensors, dst, tag)

    def recv(self, tensors: list[Tensor], src: int, tag: int) -> dist.Work:
        """Forward to torch's group."""
        return self._under.recv(tensors, src, tag)


def new_group() -> dist.ProcessGroup:
    """A group of all ranks. Collective, after `init_process_group`, once per process."""

    def create(_store: Any, rank: int, size: int, _timeout: timedelta) -> HorovodGroup:
        under = dist.group.WORLD
        assert under is not None
        return HorovodGroup(rank, size, under)

    dist.Backend.register_backend(BACKEND, create, devices=["cpu", "cuda"])
    group = dist.new_group(backend=BACKEND)
    assert isinstance(group, dist.ProcessGroup)
    return group
