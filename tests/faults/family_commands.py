"""R: the other commands that measure: killed, asked to stop, interrupted; converge on a disk that is too small."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from .case import Case, after_signal, case, mount_tmpfs, unmount
from .family_parent import saving, slow_save
from .faults import to_parent, when
from .harness import MODEL, PATIENCE_S, PIXELS, XBENCH, Live, Plant, Start, observe
from .observation import Observation
from .verdict import DONE, FAILED, INTERRUPTED, Expected

_END = ("--timeout", f"{PATIENCE_S}s")
COMMANDS: dict[str, list[str]] = {
    "tune": [*XBENCH, "tune", MODEL, "--minutes", "0.5", "--modes", "wfbp,optimal", "--fabric", "local:ranks=2", *_END,
             "--keep", "kept.json"],
    "converge": [*XBENCH, "converge", PIXELS, "--samples", "320", "--modes", "ddp,wfbp", "--seeds", "3", "--fabric",
                 "local:ranks=2", *_END],
    "profile": [*XBENCH, "profile", MODEL, "--fabric", "local:ranks=2", *_END],
}  # fmt: skip
REGRESS = [*XBENCH, "regress", "check", "--base", "HEAD", "--pairs", "4", "--layer", "wall"]
SUITE = """[regress]
budget_minutes = 1

[[regress.check]]
name = "step"
workload = "train.py:make"
modes = ["ddp"]
fabric = "local:ranks=2"
metrics = ["step_time"]
"""


def cases() -> Iterator[Case]:
    for command in ("tune", "converge"):
        for name in ("kill", "term", "int", "int5"):
            expected = replace(after_signal(name), at_least=1)
            plant = _measured(to_parent(name))
            yield case(f"R-{command}-{name}", expected, argv=COMMANDS[command], plant=plant)
    for command in ("converge", "profile"):
        for name in ("kill", "term", "int"):
            expected = after_signal(name)
            if name != "kill":
                expected = replace(expected, codes=(DONE, INTERRUPTED), says=None)
            yield _saving(f"R-{command}-{name}-save", expected, command, name)
    for name in ("kill", "term", "int", "int2", "hup"):
        yield Case(f"R-regress-{name}", after_signal(name), _regress(name))
    yield Case("R-converge-disk-full", Expected(codes=(DONE, FAILED)), _disk_full, frozenset({"root"}))


def _measured(plant: Plant) -> Plant:
    """The fault when rank 0 has measured something: a block or a curve. The model is made slow before that."""

    def planted(live: Live) -> None:
        live.wait_until(lambda: any(event["event"] == "plans" for event in live.events()), "the plans")
        live.steer("slow")
        when(lambda live: any(event["event"] in ("block", "trained") for event in live.events()), "a block", plant)(
            live
        )

    return planted


def _saving(name: str, expected: Expected, command: str, signal_name: str) -> Case:
    def look(folder: Path) -> Observation:
        return observe(Start(slow_save(folder, COMMANDS[command])), folder, saving(to_parent(signal_name)))

    return Case(name, expected, look)


def _regress(signal_name: str) -> Callable[[Path], Observation]:
    """A check of a small repository against its own last commit, which is checked out beside it."""

    def look(folder: Path) -> Observation:
        home = folder / "r"
        home.mkdir()
        (home / "train.py").write_text(Path(MODEL.partition(":")[0]).read_text())
        (home / "xbench.toml").write_text(SUITE)
        git = ["git", "-C", str(home), "-c", "user.email=a@example.org", "-c", "user.name=a"]
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "one"]):
            subprocess.run([*git, *words], check=True)
        plant = when(lambda live: bool(live.pids_of("regress.rank")), "the ranks", to_parent(signal_name), delay_s=4.0)
        seen = observe(Start(REGRESS, cwd=home), folder, plant)
        subprocess.run([*git, "worktree", "prune"], check=True)
        listed = subprocess.run(
            [*git, "worktree", "list"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        problems = [f"a checkout of the base was left: {line}" for line in listed[1:]]
        return Observation(**(vars(seen) | {"problems": (*seen.problems, *problems)}))

    return look


def _disk_full(folder: Path) -> Observation:
    disk = folder / "d"
    mount_tmpfs(disk, "48k")
    try:
        return observe(Start(COMMANDS["converge"], output=disk / "out"), folder)
    finally:
        unmount(disk)
