"""G: several runs at once, runs beside what a killed one left, and `xbench clean` beside a live run."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from .case import Case, compare, needs_of
from .faults import at, to_parent
from .harness import (
    LIMIT_S,
    XBENCH,
    Live,
    Start,
    ended,
    ending,
    environment,
    left_processes,
    look_at_runs,
    observe,
    spawn,
)
from .observation import Observation, Said
from .traces import Traces, namespaces, tidy
from .verdict import DONE, Expected


def cases() -> Iterator[Case]:
    yield _several("G-two-local", ["local"] * 2)
    yield _several("G-two-shaped", ["shaped"] * 2)
    yield _several("G-two-crossover", ["crossover"] * 2)
    yield _several("G-ten", ["local", "shaped"] * 5)
    yield Case("G-clean-beside-a-run", Expected(codes=(DONE,), at_least=2), _clean_beside, needs_of("shaped"))
    yield Case("G-run-beside-leftovers", Expected(codes=(DONE,)), _beside_leftovers, needs_of("shaped"))
    yield Case("G-three-cleans", Expected(codes=(DONE,)), _three_cleans, needs_of("shaped"))


def _several(name: str, kinds: Sequence[str]) -> Case:
    """Runs that begin together and share their output folder: each has a record of its own."""

    def look(folder: Path) -> Observation:
        output, temporary = folder / "out", folder / "t"
        temporary.mkdir()
        mark = folder.name
        env = environment(Start([]), folder, mark, temporary)
        began = time.monotonic()
        deadline = began + LIMIT_S * len(kinds) / 2
        with Traces(mark, temporary, output) as traces, ending(mark):
            processes = []
            for number, kind in enumerate(kinds):
                start = Start(compare(kind, "--timeout", "120s"))
                with open(folder / f"stderr{number}", "wb") as stderr, open(folder / "stdout", "wb") as stdout:
                    processes.append(spawn(start, env, folder, stdout, stderr))
            codes = [ended(process, deadline) for process in processes]
        said = [Said.of((folder / f"stderr{number}").read_text(errors="replace")) for number in range(len(kinds))]
        left = left_processes(mark)
        runs = look_at_runs(output, env)
        things = traces.left()
        tidy(things)
        problems = []
        if len(records := [run for run in runs if run.record is not None]) != len(kinds):
            problems.append(f"{len(kinds)} runs made {len(records)} records")
        bad = [code for code in codes if code != DONE]
        return Observation(
            code=bad[0] if bad else DONE,
            seconds=round(time.monotonic() - began, 1),
            errors=tuple(error for one in said for error in one.errors),
            said=said[-1].tail,
            traceback=any(one.traceback for one in said),
            bug=any(one.bug for one in said),
            processes=tuple(left.values()) if None not in codes else (),
            left=things,
            left_after_clean=things,
            runs=runs,
            problems=tuple(problems),
            notes=(f"exit codes {codes}",),
        )

    needs = frozenset().union(*(needs_of(kind) for kind in kinds))
    return Case(name, Expected(codes=(DONE,), at_least=len(kinds), errors=len(kinds)), look, needs)


def _clean_beside(folder: Path) -> Observation:
    def clean(live: Live) -> None:
        host = live.namespace(1)
        done = subprocess.run([*XBENCH, "clean"], capture_output=True, text=True, cwd=folder)
        live.notes.append(f"xbench clean: {done.returncode} {done.stderr.strip()}"[:300])
        if done.returncode or not Path(f"/run/netns/{host}").exists():
            live.problems.append("`xbench clean` took the namespaces of a live run")

    return observe(Start(compare("shaped")), folder, at("round", clean))


def _beside_leftovers(folder: Path) -> Observation:
    """A run is killed; another runs beside what it left, and ends well; `xbench clean` takes what the first left."""
    first, second = folder / "first", folder / "second"
    for one in (first, second):
        one.mkdir()
    env = environment(Start([]), first, folder.name, first)
    with (
        open(first / "stdout", "wb") as out,
        open(first / "stderr", "wb") as err,
        Traces(folder.name, first / "t", first / "out") as traces,
        ending(folder.name),
    ):
        process = spawn(Start(compare("shaped")), env, first, out, err)
        traces.pids.add(process.pid)
        live = Live(process, first, folder.name, first / "out", first)
        at("gate", to_parent("kill"))(live)
        process.wait(30)
        left_processes(folder.name)
    seen = observe(Start(compare("shaped")), second)
    cleaned = subprocess.run([*XBENCH, "clean"], capture_output=True, text=True, cwd=folder)
    left = traces.left()
    tidy(left)
    problems = [*seen.problems, *(f"`xbench clean` left {one}" for one in left)]
    return Observation(**(vars(seen) | {"problems": tuple(problems), "notes": (cleaned.stderr.strip()[:300],)}))


def _three_cleans(folder: Path) -> Observation:
    """Namespaces that nobody owns, and three cleaners at once: all end well, and nothing is left."""
    made = [f"xb00000{number}-{host}" for number in range(3) for host in ("0", "1", "sw")]
    for name in made:
        subprocess.run(["ip", "netns", "add", name], check=True)
    began = time.monotonic()
    cleaners = [
        subprocess.Popen([*XBENCH, "clean"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=folder)
        for _ in range(3)
    ]
    told = [one.communicate(timeout=120)[1] for one in cleaners]
    said = [Said.of(text) for text in told]
    left = tuple(f"namespace {name}" for name in namespaces() if name in made)
    tidy(left)
    return Observation(
        code=max(one.returncode for one in cleaners),
        seconds=round(time.monotonic() - began, 1),
        errors=tuple(error for one in said for error in one.errors),
        said=said[-1].tail,
        traceback=any(one.traceback for one in said),
        bug=any(one.bug for one in said),
        left_after_clean=left,
        left=left,
    )
