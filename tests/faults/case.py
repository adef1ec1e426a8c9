"""One case, and what the families of cases share: the command line of a small run and the usual expectations."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .harness import LIMIT_S, MODEL, PATIENCE_S, XBENCH, Plant, Start, observe
from .observation import Observation
from .verdict import DONE, FAILED, INTERRUPTED, USAGE, Expected

SHAPED = "shaped:hosts=2,rate=1gbit"
FABRICS = {
    "local": ("local:ranks=2", "ddp,wfbp"),
    "shaped": (SHAPED, "ddp,wfbp"),
    "crossover": ("local:ranks=2", "crossover,concurrent"),
    "emulated": ("emulated:workers=4,rate=1gbit,ranks=2", "ddp,wfbp"),
}
"""By the word that names of cases use: the fabric and the modes."""

EFFORT = ("--quick", "--rounds", "4", "--timeout", f"{PATIENCE_S}s")
TRUE_OF_ANY = (DONE, FAILED, USAGE)
"""Exit codes of a case that may go on or may be refused: what counts there are the rules of every case."""


@dataclass(frozen=True)
class Case:
    """A named situation: `look` runs it in a folder of its own. `needs`: see `has`."""

    name: str
    expected: Expected
    look: Callable[[Path], Observation]
    needs: frozenset[str] = frozenset()

    @property
    def family(self) -> str:
        """The letter before the first hyphen."""
        return self.name.partition("-")[0]


def compare(kind: str = "local", *more: str, model: str = MODEL) -> list[str]:
    """The command of a small comparison on one of FABRICS; a later option in `more` has its way."""
    fabric, modes = FABRICS[kind]
    return [*XBENCH, "compare", model, "--modes", modes, "--fabric", fabric, *EFFORT, *more]


def needs_of(kind: str) -> frozenset[str]:
    """Needs of a fabric that the machine has to meet."""
    return frozenset({"netns"}) if kind == "shaped" else frozenset()


def case(
    name: str,
    expected: Expected,
    *,
    kind: str = "local",
    plant: Plant | None = None,
    argv: Sequence[str] | None = None,
    env: Mapping[str, str | None] | None = None,
    needs: Iterable[str] = (),
    limit_s: float = LIMIT_S,
    **how: Any,
) -> Case:
    """A case of one comparison, or of another command with `argv`. `how`: other fields of `Start`."""
    start = Start(argv or compare(kind), env or {}, **how)
    return Case(
        name,
        expected,
        lambda folder: observe(start, folder, plant, limit_s=limit_s),
        needs_of(kind) | frozenset(needs),
    )


def after_signal(name: str) -> Expected:
    """Expectation after a signal to the parent: only SIGKILL may leave things, and it cannot say a word."""
    if name == "kill":
        return Expected(codes=(-9,), silent=True, leaves=True)
    return Expected(codes=(INTERRUPTED,), says="interrupted")


@functools.cache
def has(need: str) -> bool:
    """True if this machine has what a case needs."""
    if need == "root":
        return os.geteuid() == 0
    if need == "another user":
        readable = all(closed_ancestor(Path(place)) is None for place in (__file__, sys.prefix))
        return os.geteuid() == 0 and shutil.which("setpriv") is not None and readable
    if need == "netns":
        from xbench.fabrics import shaped

        return os.geteuid() == 0 and shaped.obstacle() is None
    if need == "cgroup":
        return os.geteuid() == 0 and all(cgroup_folder(name) is not None for name in ("memory", "pids"))
    raise ValueError(need)


def closed_ancestor(path: Path) -> Path | None:
    """The first folder on the way to a path that others may not enter, or None."""
    return next((up for up in reversed(path.parents) if not up.stat().st_mode & 0o001), None)


def cgroup_folder(controller: str) -> Path | None:
    """Folder where control groups of a controller may be made: version 1, or version 2 with the controller enabled."""
    first = Path("/sys/fs/cgroup") / controller
    if (first / "cgroup.procs").exists():
        return first
    enabled = Path("/sys/fs/cgroup/cgroup.subtree_control")
    return enabled.parent if enabled.exists() and controller in enabled.read_text().split() else None


def mount_tmpfs(place: Path, size: str) -> None:
    """A disk of that size."""
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=777", "tmpfs", str(place)], check=True)


def unmount(place: Path) -> None:
    """Take it away again, whoever still uses it, with what was mounted over it."""
    while place.is_mount():
        subprocess.run(["umount", "-l", str(place)], check=True)
