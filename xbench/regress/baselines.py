"""Storage of baselines: results/baselines/<machine>/ beside the suite, one folder for each kind of machine.

A machine is identified by its fingerprint (`xbench.environment.fingerprint`). If it differs, times cannot be compared.
Results that do not depend on the machine (plans, counts, predictions from a committed record) are stored under `any`.
They serve every machine without a folder of its own.
"""

from __future__ import annotations

from pathlib import Path

from xbench import environment
from xbench.errors import RecordError
from xbench.records import Baseline, Environment, Noise, Suite, load, of_kind

ANY = "any"
BASELINE, NOISE = "baseline.json", "noise.json"
OF_THE_MACHINE = frozenset({"peak_memory"})
"""Deterministic metrics that may differ on another machine or with another torch."""


def folder_of(suite_folder: Path) -> Path:
    """Return the folder of the baselines of all machines."""
    return suite_folder / "results" / "baselines"


def machine_of(described: Environment) -> str:
    """Return the folder's name for this machine and its software: 'cpu-3f9a1c02-77d0b1e4'."""
    kind = "cpu" if described.device == "cpu" else described.device.split(" and ")[0]
    word = "-".join("".join(letter if letter.isalnum() else " " for letter in kind.lower()).split())
    return f"{word}-{environment.fingerprint(described)}"


def portable(suite: Suite, layers: tuple[str, ...]) -> bool:
    """True if these layers of the suite give the same results on every machine."""
    asked = {metric for check in suite.checks for metric in check.metrics}
    return "wall" not in layers and not asked & OF_THE_MACHINE


def find(given: Path | None, folder: Path, described: Environment) -> tuple[Baseline | None, Path, str | None]:
    """Return the baseline to compare with, its actual or expected path, and a message if there is none.

    Without `given` it is this machine's, else the one for any machine. Raises RecordError if `given` does not exist or
    is no baseline.
    """
    if given is not None:
        return read(given), given, None
    own = folder / machine_of(described) / BASELINE
    if own.exists():
        return read(own), own, None
    shared = folder / ANY / BASELINE
    if shared.exists():
        return read(shared), shared, None
    there = sorted(path.parent.name for path in folder.glob(f"*/{BASELINE}"))
    others = f" (there are some of {', '.join(there)})" if there else ""
    return (
        None,
        own,
        f"there is no baseline of this machine, {own.parent.name}{others}: xbench regress record makes one",
    )


def read(path: Path) -> Baseline:
    """Read a baseline from its file or folder. Raises RecordError for anything else."""
    path = path / BASELINE if path.is_dir() else path
    record = load(path)
    baseline = of_kind(record, Baseline)
    if baseline is None:
        raise RecordError(
            f"{str(path)!r} is a {record.kind} record and no baseline", hint="xbench regress record makes one"
        )
    return baseline


def noise_of(folder: Path, described: Environment) -> Noise | None:
    """Return `calibrate`'s result on this machine; None if it was never run. Raises RecordError for a broken file."""
    path = folder / machine_of(described) / NOISE
    if not path.exists():
        return None
    return of_kind(load(path), Noise)
