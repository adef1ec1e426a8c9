"""Files that `xbench regress init` writes into a user's repository: a suite, a GitHub workflow, lines of .gitignore."""

from __future__ import annotations

import json
import re
from pathlib import Path

from xbench.errors import SpecError, nearest
from xbench.record_files import MIB, read_regular
from xbench.regress.checkout import Repository
from xbench.workloads import parse_workload
from xbench.workloads.catalog import split_factory

SUITE = Path("xbench.toml")
WORKFLOW = Path(".github/workflows/xbench.yml")
IGNORE = Path(".gitignore")
IGNORED = ("/results/runs/",)
"""Ignored records of single runs. Baselines and noise floors beside them should be committed."""

ACTION = "OWNER/xbench@v1"
_ACTION = re.compile(r"[\w.-]+/[\w./-]+@[\w./-]+", re.ASCII)

_SUITE = """\
# What CI watches of this project's training step: xbench regress check --base origin/main

[regress]
budget_minutes = 10                                    # for one check of the whole suite

[[regress.check]]
name = {name}
workload = {workload}
modes = ["ddp"]                                        # how gradients travel: xbench modes lists more
fabric = "local:ranks=2"                               # two ranks on this machine
metrics = ["collectives", "wire_bytes", "step_time"]   # counts are exact, times need a quiet machine
"""
_WORKFLOW = """\
# Fails a pull request whose training step sends more or, where times are measured too, got slower.
name: xbench
on: pull_request
permissions:
  contents: read
jobs:
  regress:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
        with:
          fetch-depth: 0
      - uses: {action}
        with:
          layer: deterministic   # on a machine of your own (runs-on: self-hosted), both times steps as well
          install: {install}
"""


def start(workload: str, folder: Path, action: str = ACTION) -> list[Path]:
    """Write all three for a workload of the repository whose root is `folder`. Return the files written.

    Raises SpecError before anything is written: for a workload that does not exist or is outside the repository, for a
    folder that is no repository's root, for an action that GitHub could not find, and for a file that already exists.
    """
    folder = folder.resolve()
    _check_root(folder)
    spec = parse_workload(workload)
    parts = split_factory(spec.name)
    if parts is not None:
        file = _inside(Path(parts[0]), folder)
        _check_function(file, parts[1])
        workload = f"{file.as_posix()}:{parts[1]}"
    if _ACTION.fullmatch(action) is None:
        raise SpecError(f"--action: {action!r} is not OWNER/REPOSITORY@REF", hint=f"write it like {ACTION}")
    texts = {
        SUITE: _SUITE.format(name=_quoted(parts[1] if parts else spec.title), workload=_quoted(workload)),
        WORKFLOW: _WORKFLOW.format(action=action, install=_install(folder)),
    }
    there = next((path for path in texts if (folder / path).exists() or (folder / path).is_symlink()), None)
    if there is not None:
        raise SpecError(f"there is a {str(there)!r} already, and it is left as it is", hint="move it away first")
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        with (folder / path).open("x", encoding="utf-8") as stream:
            stream.write(text)
    return [*texts, *([IGNORE] if _ignore(folder / IGNORE) else [])]


def _check_root(folder: Path) -> None:
    try:
        root = Repository.around(folder).root
    except SpecError as error:
        if "is in no git repository" not in str(error):
            raise
        raise SpecError(f"{str(folder)!r} is in no git repository", hint="git init makes one") from None
    if root != folder:
        raise SpecError(f"{str(folder)!r} is not the root of its git repository", hint=f"cd {root}")


def _inside(file: Path, folder: Path) -> Path:
    """Return the file relative to the repository, because each revision of a check must use its own."""
    try:
        return (folder / file).resolve().relative_to(folder)
    except ValueError:
        raise SpecError(
            f"{str(file)!r} is outside of this repository, so every revision would train the same model",
            hint="name a file of the repository",
        ) from None


def _check_function(file: Path, name: str) -> None:
    """Raise SpecError if the file does not mention the function. Nothing is imported."""
    try:
        text = read_regular(file, MIB).decode("utf-8", errors="replace")
    except OSError as error:
        raise SpecError(f"{str(file)!r} cannot be read: {error.strerror}") from None
    if re.search(rf"\b{name}\b", text) is None:
        close = nearest(name, re.findall(r"^def (\w+)\(", text, flags=re.MULTILINE))
        hint = f"did you mean '{file}:{close}'?" if close else "write a function that returns (model, batch, loss)"
        raise SpecError(f"{str(file)!r} has no function {name!r}", hint=hint)


def _install(folder: Path) -> str:
    """Return the command that installs xbench, and the project's own requirements."""
    words = ['python -m pip install "$GITHUB_ACTION_PATH"']
    words += ["-r requirements.txt"] if (folder / "requirements.txt").is_file() else []
    words += ["-e ."] if any((folder / name).is_file() for name in ("pyproject.toml", "setup.py")) else []
    return " ".join(words)


def _ignore(path: Path) -> bool:
    """Add the lines that .gitignore lacks. Return whether there were any."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    missing = [line for line in IGNORED if line not in text.splitlines()]
    with path.open("a", encoding="utf-8") as stream:
        stream.write(("\n" if text and not text.endswith("\n") else "") + "".join(f"{line}\n" for line in missing))
    return bool(missing)


def _quoted(text: str) -> str:
    """Return the text as a TOML string."""
    return json.dumps(text, ensure_ascii=False)
