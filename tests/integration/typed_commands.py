"""What the tests of whole runs share: the command line as a user types it, its record, and what it may not leave."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from xbench.cluster.live.attempt import OVER, AttemptProgress
from xbench.fabrics import links, shaped
from xbench.fabrics.stale import owner_lives
from xbench.rank.journal import pid_alive
from xbench.record_files import RESULTS
from xbench.records import Comparison, Profile, load

NETNS = pytest.mark.skipif(shaped.obstacle() is not None, reason=f"shaped links do not work here: {shaped.obstacle()}")
TINY = "transformer-tiny"
FORKED = Path(__file__).parent / "ranks" / "forked.py"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "xbench", *arguments]


def results_in(folder: Path, **more: str) -> dict[str, str]:
    """Our environment, with a folder for the records of runs, and more."""
    return os.environ | {RESULTS: str(folder)} | more


def xbench(*arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
    return ran(command(*arguments), **how)


def ran(
    arguments: list[str],
    timeout_s: float = 240,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    results: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    # An environment of its own: readline, which pytest imports, puts COLUMNS into the one that children get otherwise.
    env = dict(os.environ if env is None else env)
    if results is not None:
        env[RESULTS] = str(results)
    return subprocess.run(arguments, capture_output=True, text=True, timeout=timeout_s, cwd=cwd, env=env)


def with_ranks_of(module: str, *arguments: str, results: Path) -> subprocess.CompletedProcess[str]:
    """The same, with ranks that run this module of `ranks/` in the place of `xbench.rank.main`."""
    start = f"from xbench.runs import execute; execute.WORKER = {module!r}; from xbench.__main__ import run; run()"
    ranks = str(Path(__file__).parent / "ranks")
    paths = os.pathsep.join([ranks, *filter(None, [os.environ.get("PYTHONPATH")])])
    return ran([sys.executable, "-c", start, *arguments], env=os.environ | {"PYTHONPATH": paths}, results=results)


def started(words: list[str], results: Path) -> subprocess.Popen[str]:
    """A run in a session of its own, so that a signal to its group is what a terminal would send."""
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=results_in(results),
    )  # fmt: skip


def wait_for(run: subprocess.Popen[str], seen: Callable[[], object]) -> None:
    """Until it is true of a run that has not ended."""
    deadline_s = time.monotonic() + 120
    while not seen():
        assert run.poll() is None, run.communicate()[1][-3000:]
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def events(results: Path, rank: int, name: str) -> list[dict[str, Any]]:
    """Events of that name in the journal of a rank of the only run, without a line that is being written."""
    found = []
    for path in results.glob(f"*/launch*/job0-rank{rank}.jsonl"):
        data = path.read_bytes()
        found += [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
    return [event for event in found if event["event"] == name]


def in_phase(results: Path, begin: str) -> Callable[[], bool]:
    return lambda: any(event["name"].startswith(begin) for event in events(results, 0, "phase"))


def pid_of(results: Path, rank: int) -> int:
    return int(events(results, rank, "hello")[-1]["pid"])


def only_record(folder: Path) -> Profile | Comparison:
    (path,) = folder.glob("*/record.json")
    return load(path)


def comparison(folder: Path) -> Comparison:
    """The record of the only run, a comparison."""
    return only_record(folder)


def compare(*words: str, results: Path, **how: Any) -> tuple[Comparison, subprocess.CompletedProcess[str]]:
    """The record of a comparison that ends well, and what it said."""
    done = xbench("compare", *words, results=results, **how)
    assert done.returncode == 0, done.stderr[-3000:]
    return comparison(results), done


def compared(folder: Path, source: str, modes: str, *options: str, ranks: int = 2, **how: Any) -> Comparison:
    """The whole record of a short comparison of `make` in this source. `how`: see `ran`."""
    (folder / "train.py").write_text(source)
    done = xbench(
        "compare", f"{folder / 'train.py'}:make", "--fabric", f"local:ranks={ranks}", "--quick", "--rounds", "1",
        "--modes", modes, *options, results=folder / "runs", **how,
    )  # fmt: skip
    record = comparison(folder / "runs")
    assert record.complete, (record.error, done.stderr[-2000:])
    return record


def said_by_ranks(world: int, script: Path, *arguments: str, store: Path, timeout_s: float = 120) -> list[str]:
    """Return what `world` ranks print that run a script and meet over a file store."""
    (said,) = said_by_groups([[world, str(script), *arguments]], store, timeout_s)
    return said


def said_by_groups(groups: Sequence[Sequence[int | str]], store: Path, timeout_s: float) -> list[list[str]]:
    """Return what each rank of each group prints; `ranks/forked.py` says what a group is."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    started = subprocess.Popen(
        [sys.executable, str(FORKED), str(store), json.dumps(groups)], env=env, start_new_session=True
    )
    try:
        started.wait(timeout_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
    return [
        [Path(f"{store}{number}-{rank}.txt").read_text() for rank in range(int(group[0]))]
        for number, group in enumerate(groups)
    ]


def scenarios_of(*scripts: str) -> list[str]:
    """The scenarios in these files of `ranks/`: functions of a rank and the number of ranks."""
    texts = [(Path(__file__).parent / "ranks" / script).read_text() for script in scripts]
    return [name for text in texts for name in re.findall(r"^def (\w+)\(rank: int, world: int\)", text, re.MULTILINE)]


def wait_until_gone(pids: Sequence[int]) -> bool:
    """Whether all of them are gone within ten seconds: the kernel kills them one after the other."""
    deadline_s = time.monotonic() + 10
    while any(pid_alive(pid) for pid in pids) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return not any(pid_alive(pid) for pid in pids)


def at_step(running: Any, step: int) -> AttemptProgress:
    """Wait until an attempt of a live job has applied a step."""
    deadline_s = time.monotonic() + 90
    while (look := running.look()).steps < step:
        assert look.state not in OVER, look
        assert time.monotonic() < deadline_s, look
        time.sleep(0.002)
    return look


def processes_of(folder: Path) -> list[psutil.Process]:
    """Processes with this folder in their command line, wherever they hang in the tree."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and any(str(folder) in word for word in process.cmdline()):
                found.append(process)
    return [process for process in found if process.pid != os.getpid()]


def has_ip() -> bool:
    return any((Path(folder) / "ip").exists() for folder in ("/usr/sbin", "/sbin", "/usr/bin"))


WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
"""The worker of pytest-xdist that these tests run in, which what they start inherits; empty without xdist."""


def present() -> set[str]:
    """Processes that these tests started and namespaces without an owner that are there."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout if has_ip() else ""
    matches = [links.NAMESPACE.fullmatch(line.split()[0]) for line in listed.splitlines()]
    names = [match[0] for match in matches if match is not None and not owner_lives(match["run"])]
    ranks = subprocess.run(["pgrep", "-af", "xbench.rank.main"], capture_output=True, text=True)
    return {*names, *(line for line in ranks.stdout.splitlines() if _worker_of(int(line.split()[0])) == WORKER)}


def _worker_of(pid: int) -> str | None:
    """See `WORKER`; None: the process is gone."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((one.partition(b"=")[2].decode() for one in environment if one.startswith(b"PYTEST_XDIST_WORKER=")), "")


BEFORE = present()
"""What somebody else runs, or left, on this machine is not these tests' to judge."""


def may_raise_priorities() -> bool:
    """True if this process has CAP_SYS_NICE."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return bool(int(status["CapEff"], 16) >> 23 & 1)


def left_behind() -> str:
    """Processes of ours and namespaces without an owner that were not there before the tests, and still are."""
    return "\n".join(sorted(present() - BEFORE))
