"""E: a full, read-only or vanished disk, limits of the process, limits of its control group."""

from __future__ import annotations

import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from .case import TRUE_OF_ANY, Case, case, cgroup_folder, compare, mount_tmpfs, needs_of, unmount
from .faults import at
from .harness import Live, Plant, Start, observe
from .observation import Observation, run_folders
from .verdict import DONE, FAILED, USAGE, Expected

ANY = Expected(codes=TRUE_OF_ANY)
ROOM = "8m"

Limit = tuple[int, int]
LIMITS: dict[str, tuple[Limit, Expected]] = {
    **{f"nofile-{count}": ((resource.RLIMIT_NOFILE, count), ANY) for count in (12, 16, 24, 32, 48, 64, 128)},
    "vmem-300m": ((resource.RLIMIT_AS, 300 << 20), ANY),
    "vmem-1000m": ((resource.RLIMIT_AS, 1000 << 20), Expected(codes=(FAILED, USAGE), says=r"(?i)memory|map|allocate")),
    "vmem-2000m": ((resource.RLIMIT_AS, 2000 << 20), ANY),
    "vmem-4000m": ((resource.RLIMIT_AS, 4000 << 20), ANY),
    "fsize-4k": ((resource.RLIMIT_FSIZE, 4_000), replace(ANY, codes=(*TRUE_OF_ANY, -25))),
    "fsize-20k": ((resource.RLIMIT_FSIZE, 20_000), replace(ANY, codes=(*TRUE_OF_ANY, -25))),
    "fsize-100k": ((resource.RLIMIT_FSIZE, 100_000), replace(ANY, codes=(*TRUE_OF_ANY, -25))),
    "stack-256k": ((resource.RLIMIT_STACK, 256 << 10), ANY),
    "cpu-3s": ((resource.RLIMIT_CPU, 3), replace(ANY, codes=(*TRUE_OF_ANY, -24, -9), silent=True)),
    "memlock-0": ((resource.RLIMIT_MEMLOCK, 0), Expected(codes=(DONE,))),
    "nproc-20": ((resource.RLIMIT_NPROC, 20), ANY),
    "core-0": ((resource.RLIMIT_CORE, 0), Expected(codes=(DONE,))),
}
"""ulimits, as (resource, value)."""


def cases() -> Iterator[Case]:
    for size in ("4k", "32k", "64k", "128k", "512k"):
        yield _disk(f"E-disk-out-{size}", size, "out")
    yield _disk("E-disk-out-64k-shaped", "64k", "out", kind="shaped")
    for size in ("4k", "64k", "512k"):
        yield _disk(f"E-disk-tmp-{size}", size, "tmp")
    yield _disk("E-disk-tmp-4k-crossover", "4k", "tmp", kind="crossover")
    yield _on_disk("E-disk-filled-midway", Expected(codes=(DONE, FAILED)), _fill)
    yield _on_disk("E-disk-filled-midway-shaped", Expected(codes=(DONE, FAILED)), _fill, kind="shaped")
    yield _on_disk("E-read-only-midway", Expected(codes=(DONE, FAILED)), _remount)
    yield _on_disk("E-read-only", Expected(codes=(FAILED, USAGE)), None, before=_remount_place)
    removed = Expected(codes=(DONE, FAILED), keeps=False, tells=None)
    yield case("E-folder-removed-midway", removed, plant=at("round", _remove))
    for name, (limit, expected) in LIMITS.items():
        yield case(f"E-{name}", expected, preexec=_limited(limit))
    for kind in ("shaped", "crossover"):
        yield case(f"E-nofile-64-{kind}", ANY, kind=kind, preexec=_limited((resource.RLIMIT_NOFILE, 64)))
    for megabytes in (100, 300, 500, 700):
        yield _in_group(f"E-group-memory-{megabytes}m", "memory", str(megabytes << 20))
    for count in (3, 8, 16, 32):
        yield _in_group(f"E-group-pids-{count}", "pids", str(count))


def _limited(limit: Limit) -> Callable[[], None]:
    which, value = limit
    return lambda: resource.setrlimit(which, (value, value))


def _disk(name: str, size: str, where: str, kind: str = "local") -> Case:
    """All output, or all temporary files, on a disk of that size."""

    def look(folder: Path) -> Observation:
        disk = folder / "d"
        mount_tmpfs(disk, size)
        try:
            out = disk / "out" if where == "out" else None
            return observe(Start(compare(kind), output=out, temporary=disk if out is None else None), folder)
        finally:
            unmount(disk)

    return Case(name, ANY, look, needs_of(kind) | {"root"})


def _on_disk(
    name: str,
    expected: Expected,
    change: Callable[[Path], None] | None,
    *,
    before: Callable[[Path], None] | None = None,
    kind: str = "local",
) -> Case:
    """The output on a disk with room, which is changed when one block is measured, or before the start."""

    def look(folder: Path) -> Observation:
        disk = folder / "d"
        mount_tmpfs(disk, ROOM)
        plant: Plant | None = None
        if change is not None:
            plant = at("round", lambda live: change(disk))
        try:
            if before is not None:
                before(disk)
            return observe(Start(compare(kind), output=disk / "out"), folder, plant)
        finally:
            unmount(disk)

    return Case(name, expected, look, needs_of(kind) | {"root"})


def _fill(disk: Path) -> None:
    with open(disk / "filler", "wb", buffering=0) as filler:
        try:
            while filler.write(b"x" * 4096):
                pass
        except OSError:
            pass


def _remount_place(disk: Path) -> None:
    (disk / "out").mkdir()
    _remount(disk)


def _remount(disk: Path) -> None:
    """Nothing new can be written there. The kernel allows no more while files are open, so these go on."""
    for words in (["--bind", str(disk), str(disk)], ["-o", "remount,bind,ro", str(disk)]):
        subprocess.run(["mount", *words], check=True)


def _remove(live: Live) -> None:
    for folder in run_folders(live.output):
        shutil.rmtree(folder)


def _in_group(name: str, controller: str, limit: str) -> Case:
    """The run in a control group with a limit. A parent that is killed for memory cannot say so."""
    expected = replace(ANY, codes=(*TRUE_OF_ANY, -9), silent=True, leaves=True)

    def look(folder: Path) -> Observation:
        above = cgroup_folder(controller)
        group = above / folder.name
        group.mkdir()
        try:
            first = "limit_in_bytes" if (above / "tasks").exists() and controller == "memory" else "max"
            (group / f"{controller}.{first}").write_text(limit)
            if (swap := group / "memory.swap.max").exists():
                swap.write_text("0")
            return observe(Start(compare(), preexec=lambda: _enter(group)), folder)
        finally:
            _remove_group(group)

    return Case(name, expected, look, frozenset({"cgroup"}))


def _enter(group: Path) -> None:
    (group / "cgroup.procs").write_text("0")


def _remove_group(group: Path) -> None:
    for _ in range(50):
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.1)
