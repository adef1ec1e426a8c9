"""The engine of one machine: slots are its cores or its GPUs, and each attempt is a group of processes of ours.

    controller ── agent (`launch.agent`) ── a rank a slot (`job_rank`), pinned to the slot's cores

Guards tie each to its parent, so `kill -9` of the controller takes all along; and every one of them holds the lock of
the job's folder (`flock`, which the kernel releases with its last holder), so nobody starts an attempt beside one
that is still dying, and an attempt is over when its agent has ended and the lock is free.

A worker of an attempt that was killed leaves nothing but its folder: the last checkpoint is whole whatever happens.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

from xbench.cluster.live import attempt
from xbench.cluster.live.jobs_file import JobEntry
from xbench.errors import RunError, SpecError
from xbench.fabrics.fabric import available_cores, hyper_threads, split_cores, this_machine
from xbench.launch import agent
from xbench.launch.launcher import rank_env
from xbench.launch_guard import GUARD
from xbench.profilers.gpu import NotAvailable, list_gpus, load_nvml
from xbench.spec import DeviceType

MODULE = "xbench.cluster.live.job_rank"
DYING_S = 2.0
"""How long a start waits for the attempt before it to be gone: processes that were killed take a moment."""

POLL_S = 0.01


class LocalEngine:
    """Slots on this machine. `slots` None: one a core, or one a GPU.

    Use it from the thread that lives longest: the kernel ends an attempt with the thread that started it. Raises
    SpecError where there is no such slot.
    """

    def __init__(self, slots: int | None = None, device: DeviceType = "cpu") -> None:
        self.device = device
        self.cores: list[list[int]] = []
        """Of each slot; empty on GPUs."""
        self._running: list[LocalRunning] = []
        if device == "cuda":
            try:
                there = len(list_gpus(load_nvml()))
            except NotAvailable:
                there = 0
            if not there or (slots or 1) > there:
                raise SpecError(
                    f"{slots or 'a'} GPU slots were asked for, and this machine has {there} GPUs",
                    hint=f"at most {there} slots" if there else "leave out --device, for slots on its cores",
                )
            self.slots = slots or there
            return
        cores = available_cores()
        self.slots = len(cores) if slots is None else slots
        if self.slots < 1:
            raise SpecError(f"{slots} slots cannot run anything", hint="ask for at least one")
        self.cores = split_cores(cores, 1, self.slots, hyper_threads(cores))[0][0]

    def start(self, job: JobEntry, folder: Path, slots: tuple[int, ...]) -> LocalRunning:
        """Launch an attempt with one worker on each of these slots.

        Raises SpecError for what cannot be built, RunError when another attempt lives in the folder, and OSError.
        """
        program = attempt.attempt_of(job, slots, self.device)
        folder.mkdir(parents=True, exist_ok=True)
        lock = taken(folder, DYING_S)
        if lock is None:
            raise RunError(f"job {job.name!r}: another attempt of it lives in {folder}")
        try:
            running = self._launched(program, folder, lock)
        finally:
            os.close(lock)  # those whom it was handed on to hold it now
        self._running = [one for one in self._running if not one.over] + [running]
        return running

    def _launched(self, program: attempt.AttemptSpec, folder: Path, lock: int) -> LocalRunning:
        directory = attempt.next_attempt(folder, program)
        here = this_machine(tuple(tuple(self.cores[slot]) for slot in program.slots) if self.cores else ())
        command = [
            *(*GUARD, str(os.getpid()), *agent.AGENT),
            *("1", str(program.workers), "0", here.address, "0"),
            *(sys.executable, "-m", MODULE, str(directory.absolute())),
        ]
        env = {**rank_env(here), "XBENCH_HELD": str(lock)}
        with open(directory / attempt.LOG, "wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True,
                pass_fds=(lock,)
            )  # fmt: skip
        return LocalRunning(process, directory, program)

    def close(self) -> None:
        """End everything that still runs, and wait until it is gone."""
        for one in self._running:
            one.kill()
        for one in self._running:
            one.wait()
        self._running = []


class LocalRunning(attempt.Running):
    """One attempt; see `Running`."""

    def __init__(self, process: subprocess.Popen[bytes], directory: Path, program: attempt.AttemptSpec) -> None:
        super().__init__(directory, program)
        self._process = process
        self._killed = False

    def look(self) -> attempt.AttemptProgress:
        """See `Running`."""
        if self.over:
            return self._look
        # Before the journal is read: nothing is written after.
        gone = self._process.poll() is not None and free(self.directory.parent)
        self._read()
        if gone:
            reason = "" if self._end else self._reason()
            self._look = self._look._replace(state=self._end or "failed", kept_steps=self._kept(), reason=reason)
        return self._look

    def kill(self) -> None:
        """See `Running`."""
        if not self.over:
            self._killed = True
            self._process.kill()

    def wait(self, seconds: float = 60.0) -> attempt.AttemptProgress:
        """Look until it is over. Raises RunError when it is not by then."""
        deadline_s = time.monotonic() + seconds
        while self.look().state not in attempt.OVER:
            if time.monotonic() > deadline_s:
                raise RunError(f"the processes in {self.directory} are not gone after {seconds:.0f} s")
            time.sleep(POLL_S)
        return self._look

    def _reason(self) -> str:
        """Why it failed, in a sentence: what a rank died of, and not what others then noticed."""
        if self._killed:
            return "it was killed as asked"
        errors = attempt.errors_of(self.directory, self._program.workers)
        log = agent.tail(self.directory / attempt.LOG)
        for rank, event in errors:
            if not agent.lost_peers(event.message):
                return (
                    f"rank {rank} {event.said}" if event.said else f"rank {rank}: {attempt.first_line(event.message)}"
                )
        told = {rank for rank, _ in errors}
        for code_text, rank_text, _ in agent.EXIT.findall(log):
            if int(rank_text) not in told:
                return f"rank {rank_text} {agent.describe_exit(int(code_text))}"
        if errors:
            rank, event = errors[0]
            return f"rank {rank}: {attempt.first_line(event.message)}"
        code = self._process.returncode
        ended = f"its agent {agent.describe_exit(code)}"
        return ended if code and code < 0 else agent.last_words(log) or ended


def taken(folder: Path, seconds: float = 0.0) -> int | None:
    """The open lock of a folder, which is ours now, or None when others still hold it after so many seconds."""
    handle = os.open(folder / attempt.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline_s = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                os.close(handle)
                return None
            time.sleep(POLL_S)
        except BaseException:
            os.close(handle)
            raise
        else:
            return handle


def free(folder: Path) -> bool:
    """True if no process of an attempt is left in a job's folder."""
    handle = taken(folder)
    if handle is None:
        return False
    os.close(handle)
    return True
