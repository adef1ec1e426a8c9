"""Starts a real xbench, follows the journals of its ranks to know its phase, plants a fault, waits, and observes.

Each case has a folder of its own with the output, the folder for temporary files and the files that steer the model,
so that whatever lies there afterwards was left by this case. Its path is short: sockets have names of at most 107
letters. Every process of the case carries a mark in its environment.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from xbench.record_files import RESULTS

from .observation import Observation, RunSeen, Said, events_of, mixed_in, read_record, run_folders, units_of
from .traces import MARK, Traces, marked, tidy

ROOT = Path(__file__).parents[2]
XBENCH = (sys.executable, "-m", "xbench")
MODEL = f"{Path(__file__).with_name('workload.py')}:make"
PIXELS = f"{Path(__file__).with_name('workload.py')}:make_pixels"
PATIENCE_S = 20
"""Longest silence [s] of the ranks of a case: longer than any step takes beside another case."""
LIMIT_S = 240.0
"""A run that has not ended by then hangs."""
PHASES = ("profile", "gate", "block", "round", "timeline", "end")
"""Phases of rank 0: `block` is the first timed block, `round` the second, when one is whole; `end` is its last word."""
GRACE_S = 6.0
POLL_S = 0.01
_OF_AROUND = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "COLUMNS", "PYTEST_CURRENT_TEST")


class MissedError(Exception):
    """The moment for the fault did not come: the run ended before, or took too long."""


@dataclass
class Live:
    """A run that is under way, as a fault sees it."""

    process: subprocess.Popen[bytes]
    folder: Path
    mark: str
    output: Path
    temporary: Path
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        """The parent's process id, which is its process group's too."""
        return self.process.pid

    def events(self, job: int = 0, rank: int = 0) -> list[dict[str, Any]]:
        """The events of one rank, of all launches so far."""
        paths = sorted(self.output.rglob(f"job{job}-rank{rank}.jsonl"), key=lambda path: path.stat().st_mtime)
        return [event for path in paths for event in events_of(path)]

    def wait_until(self, what: Callable[[], Any], name: str, limit_s: float = 90.0) -> None:
        """Return when it is true. Raises MissedError when the run ends, or that much time passes, before."""
        deadline = time.monotonic() + limit_s
        while not what():
            if self.process.poll() is not None:
                raise MissedError(f"{name} never came: the run ended before")
            if time.monotonic() > deadline:
                raise MissedError(f"{name} did not come within {limit_s:.0f} s")
            time.sleep(POLL_S)

    def wait_for_phase(self, phase: str) -> None:
        """Return when rank 0 of the first job is in a phase, see PHASES; from 'block' on the model is made slow.

        Raises MissedError when the run ends before.
        """
        if phase in ("block", "round"):
            self.wait_until(lambda: self._passed("gate"), "gate")
            self.steer("slow")
        self.wait_until(lambda: self._passed(phase), phase)

    def _passed(self, phase: str) -> bool:
        name = {"block": "round 1", "round": "round 1"}.get(phase, phase)
        events = self.events()
        begun = any(event["event"] == "phase" and event["name"].startswith(name) for event in events)
        if phase == "end":
            return any(event["event"] == "end" for event in events)
        return begun and (phase != "round" or any(event["event"] == "block" for event in events))

    def steer(self, name: str) -> None:
        """Make one of the files that the model looks for."""
        (self.folder / name).touch()

    def rank_pid(self, rank: int, job: int = 0) -> int:
        """Process id of a rank. Raises MissedError before it has said hello."""
        for event in reversed(self.events(job, rank)):
            if event["event"] == "hello":
                return int(event["pid"])
        raise MissedError(f"rank {rank} has not begun")

    def pids_of(self, words: str) -> list[int]:
        """Processes of this run whose command line holds these words, oldest first."""
        return sorted(pid for pid, line in marked(self.mark).items() if words in line and "launch_guard" not in line)

    def namespace(self, host: int | str) -> str:
        """The namespace of one of its hosts, or of the switch ('sw'), by the process of a rank."""
        told = subprocess.run(["ip", "netns", "identify", str(self.rank_pid(0))], capture_output=True, text=True)
        name = told.stdout.strip()
        if not name.startswith("xb"):
            raise MissedError("the ranks have no namespace")
        return f"{name.partition('-')[0]}-{host}"


Plant = Callable[[Live], None]


@dataclass(frozen=True)
class Start:
    """Start of a run, and its output folder. `env`: beside the usual one, None takes away.

    `bare`: with nothing of the usual environment. `prefix`: a command that becomes it, and that
    `xbench clean` runs behind too: as another user, for example.
    """

    argv: Sequence[str]
    env: Mapping[str, str | None] = field(default_factory=dict)
    preexec: Callable[[], None] | None = None
    output: Path | None = None
    cwd: Path | None = None
    temporary: Path | None = None
    bare: bool = False
    prefix: Sequence[str] = ()


@contextlib.contextmanager
def case_folder() -> Iterator[Path]:
    """A short-named folder for one case that any user may enter, removed at its end."""
    folder = Path(tempfile.mkdtemp(prefix="xf-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def observe(start: Start, folder: Path, plant: Plant | None = None, *, limit_s: float = LIMIT_S) -> Observation:
    """Run one case in its folder, to its end, and leave nothing of it behind."""
    mark = f"{folder.name}-{time.monotonic_ns()}"
    output = start.output or folder / "out"
    temporary = start.temporary or folder / "t"
    if start.temporary is None:
        temporary.mkdir(exist_ok=True)
        temporary.chmod(0o777)
    env = environment(start, folder, mark, temporary)
    began = time.monotonic()
    planted = True
    traces = Traces(mark, temporary, output)
    with open(folder / "stdout", "wb") as stdout, open(folder / "stderr", "wb") as stderr, traces, ending(mark):
        process = spawn(start, env, folder, stdout, stderr)
        traces.pids.add(process.pid)
        live = Live(process, folder, mark, output, temporary)
        try:
            if plant is not None:
                plant(live)
        except (MissedError, ProcessLookupError) as missed:
            planted = False
            live.notes.append(str(missed))
        code = ended(process, began + limit_s)
    seconds = time.monotonic() - began
    processes = left_processes(mark)
    if code is None:
        live.notes.append(f"ended by force; alive: {sorted(processes.values())[:4]}")
        processes = {}
    left = traces.left()
    left_after_clean: tuple[str, ...] = ()
    if left:
        cleaned = _xbench(["clean"], env, folder, start.prefix)
        live.notes.append(f"xbench clean: {cleaned.returncode} {' '.join(cleaned.stderr.split())[:200]}")
        left_after_clean = traces.left()
    said = Said.of((folder / "stderr").read_bytes().decode(errors="replace"))
    spare = _spare_records(said.tail, temporary)
    runs = look_at_runs(output, env, spare)
    saved = tuple(str(path) for path in spare)
    tidy(left_after_clean)
    return Observation(
        code=code,
        seconds=round(seconds, 1),
        planted=planted,
        errors=said.errors,
        said=said.tail,
        traceback=said.traceback,
        bug=said.bug,
        processes=tuple(sorted(processes.values())),
        left=tuple(one for one in left if one not in saved),
        left_after_clean=tuple(one for one in left_after_clean if one not in saved),
        runs=runs,
        problems=tuple(live.problems),
        notes=tuple(live.notes),
    )


def environment(start: Start, folder: Path, mark: str, temporary: Path) -> dict[str, str]:
    """The environment of a run with its output folder: ours without what is set around us, and the case's own."""
    env = {name: value for name, value in os.environ.items() if name not in _OF_AROUND}
    env = {} if start.bare else env
    env |= {MARK: mark, "XBENCH_FAULTS": str(folder), "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    env[RESULTS] = str(start.output or folder / "out")
    for name, value in start.env.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def spawn(
    start: Start, env: Mapping[str, str], folder: Path, stdout: IO[bytes], stderr: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start the run in a session of its own, so that a signal to its group is what a terminal would send."""
    return subprocess.Popen(
        [*start.prefix, *start.argv], env=dict(env), cwd=start.cwd or folder, stdin=subprocess.DEVNULL,
        stdout=stdout, stderr=stderr, start_new_session=True, preexec_fn=lambda: _begin(start),
    )  # fmt: skip


def _begin(start: Start) -> None:
    """In the new process: signals as a terminal has them, even where we run under nohup or in the background."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    if start.preexec is not None:
        start.preexec()


def look_at_runs(output: Path, env: Mapping[str, str], spare: Sequence[Path] = ()) -> tuple[RunSeen, ...]:
    """Every run under an output folder, with its record: the file, one that went elsewhere, or one that is rebuilt."""
    seen = []
    for folder in run_folders(output):
        path = folder / "record.json"
        units = units_of(folder)
        elsewhere = next((one for one in spare if folder.name in one.name), None)
        record = None
        if path.exists() or elsewhere is not None:
            record = read_record((elsewhere or path).read_text(errors="replace"))
        elif units:
            told = _xbench(["report", str(folder), "--json", "-"], env, output)
            record = read_record(told.stdout, rebuilt=True) if told.returncode == 0 else None
        seen.append(RunSeen(folder.name, units, mixed_in(folder), record))
    return tuple(seen)


def _xbench(
    words: Sequence[str], env: Mapping[str, str], cwd: Path, prefix: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    unmarked = {name: value for name, value in env.items() if name != MARK}
    return subprocess.run(
        [*prefix, *XBENCH, *words], env=unmarked, cwd=cwd, capture_output=True, text=True, timeout=120
    )


def ended(process: subprocess.Popen[bytes], deadline: float) -> int | None:
    """The exit code, or None where the deadline passed."""
    try:
        return process.wait(max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None


@contextlib.contextmanager
def ending(mark: str) -> Iterator[None]:
    """When we are interrupted inside, the case ends with us."""
    try:
        yield
    except BaseException:
        for _ in range(2):  # a process that has just been started does not carry the mark yet
            end_all(mark)
            time.sleep(0.5)
        raise


def end_all(mark: str) -> None:
    """Kill every process of a case."""
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def left_processes(mark: str) -> dict[int, str]:
    """Processes that are still there after the grace; all are ended then."""
    deadline = time.monotonic() + GRACE_S
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    end_all(mark)
    return left


def _spare_records(tail: str, temporary: Path) -> list[Path]:
    """Records that found no room in their folder and are named on stderr."""
    words = [Path(word) for word in tail.split() if word.endswith(".json")]
    return [path for path in words if path.name.startswith("xbench-") and path.exists()]
