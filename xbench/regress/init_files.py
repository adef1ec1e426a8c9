"""Files that `xbench regress init` writes into a user's repository: a suite, a GitHub workflow, lines of .gitignore."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from xbench.distribution import NAME, local_path, source
from xbench.errors import SpecError, XbenchError, listed, nearest
from xbench.record_files import MIB, read_regular
from xbench.regress.checkout import Repository, published
from xbench.regress.suite import load_suite
from xbench.spec import WorkloadSpec
from xbench.text import one_line
from xbench.workloads import parse_workload
from xbench.workloads.catalog import split_factory
from xbench.workloads.libraries import split_library

SUITE = Path("xbench.toml")
WORKFLOW = Path(".github/workflows/xbench.yml")
IGNORE = Path(".gitignore")
IGNORED = ("/results/runs/",)
"""Ignored records of single runs. Baselines and noise floors beside them should be committed."""

_SUITE = """\
# What CI watches of this project's training step: xbench regress check --base origin/main

[regress]
budget_minutes = 10                                    # for one check of the whole suite

[[regress.check]]
name = {name}
workload = {workload}
modes = ["ddp"]                                        # how gradients travel: xbench list modes lists more
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
      - uses: actions/setup-python@v5
        with:
          python-version: "{python}"
{install}
      # on a machine of your own (runs-on: self-hosted), --layer both times steps as well
      - run: xbench regress check --base "${{{{ github.event.pull_request.base.sha }}}}" --layer deterministic
"""


class Written(NamedTuple):
    """Files that `start` has written, and the reason why the workflow is not among them, with what to do."""

    files: list[Path]
    no_workflow: str | None = None


def start(workload: str | None, folder: Path, install: str | None = None) -> Written:
    """Write the files that the repository whose root is `folder` lacks. A file that is there is left as it is.

    The suite is for the workload; without one, for the only factory in the files of `folder`. `install` is the shell
    command that installs xbench in CI; without it, xbench comes from where this one came. If CI cannot fetch that, the
    workflow is not written.

    Raises SpecError before anything is written: for a workload that does not exist or is outside the repository, for a
    folder that is no repository's root, and if a file that was asked for already exists.
    """
    folder = folder.resolve()
    _check_root(folder)
    there = [path for path in (SUITE, WORKFLOW) if (folder / path).exists() or (folder / path).is_symlink()]
    asked = [path for path, given in ((SUITE, workload), (WORKFLOW, install)) if given is not None]
    left = next((path for path in there if path in asked or len(there) == 2), None)
    if left is not None:
        raise SpecError(f"there is a {str(left)!r} already, and it is left as it is", hint="move it away first")
    texts: dict[Path, str] = {}
    if SUITE not in there:
        spec, workload = _found(workload, folder)
        name = (split_factory(spec.name) or ("", spec.title))[1]
        texts[SUITE] = _SUITE.format(name=_quoted(name), workload=_quoted(workload))
        names = [spec.name]
    else:
        names = [parse_workload(check.workload).name for check in load_suite(folder / SUITE).checks]
    no_workflow = None
    if WORKFLOW not in there:
        try:
            texts[WORKFLOW] = _workflow(one_line(install or "") or _installing(names), folder)
        except SpecError as error:
            no_workflow = f"{error}; {error.hint}"
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        with (folder / path).open("x", encoding="utf-8") as stream:
            stream.write(text)
    return Written([*texts, *([IGNORE] if _ignore(folder / IGNORE) else [])], no_workflow)


def _found(workload: str | None, folder: Path) -> tuple[WorkloadSpec, str]:
    """Return the workload, and its text for a suite in `folder`. Raises SpecError."""
    text = workload if workload is not None else _only_factory(folder)
    spec = parse_workload(text)
    parts = split_factory(spec.name)
    if parts is None:
        return spec, text
    file = _inside(Path(parts[0]), folder)
    _check_function(file, parts[1])
    return spec, f"{file.as_posix()}:{parts[1]}"


def _workflow(install: str, folder: Path) -> str:
    lines = [install, *_needs(folder)]
    runs = "\n".join(f"      - run: {_quoted(line)}" for line in lines)
    return _WORKFLOW.format(python=".".join(map(str, sys.version_info[:2])), install=runs)


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


def _only_factory(folder: Path) -> str:
    """Return 'models.py:make' if it is the only factory in the files of the folder. Raises SpecError."""
    found = [f"{file.name}:{name}" for file in sorted(folder.glob("*.py")) for name in _factories(file)]
    if len(found) == 1:
        return found[0]
    if found:
        raise SpecError(
            f"the files of this folder have {len(found)} functions that may make a workload",
            hint=f"name one of {listed(found)}, as in xbench regress init {found[0]}",
        )
    raise SpecError(
        "no file of this folder has a function that returns (model, batch, loss), and no workload is named",
        hint="write one, or name a model, as in xbench regress init resnet18",
    )


def _factories(file: Path) -> list[str]:
    """Return the functions of a file that take no argument and return three values. Nothing is imported."""
    try:
        statements = ast.parse(read_regular(file, MIB)).body
    except (OSError, SyntaxError, ValueError, XbenchError):
        return []
    return [
        one.name
        for one in statements
        if isinstance(one, ast.FunctionDef)
        and len(one.args.posonlyargs + one.args.args) == len(one.args.defaults)
        and None not in one.args.kw_defaults
        and any(
            isinstance(inner, ast.Return) and isinstance(inner.value, ast.Tuple) and len(inner.value.elts) == 3
            for inner in ast.walk(one)
        )
    ]


def _installing(workloads: Iterable[str]) -> str:
    """Return the command that installs this xbench elsewhere, with the libraries of these workloads.

    Raises SpecError for an xbench that cannot be fetched.
    """
    extras = sorted({library[0] for library in map(split_library, workloads) if library is not None})
    name = f"{NAME}[{','.join(extras)}]" if extras else NAME
    came = source()
    url = str(came.get("url", ""))
    path = local_path(url)
    address: str | None = url
    if path is not None and "dir_info" in came:
        address = published(path)
    elif "vcs_info" in came:
        address = f"git+{url}@{came['vcs_info'].get('commit_id', '')}"
    if address is None or urlsplit(address).scheme not in ("https", "git+https"):
        raise SpecError(
            f"CI cannot fetch this xbench, which came from {str(path or url or 'a package index')!r}",
            hint="name a command that installs it there: xbench regress init --install 'python -m pip install …'",
        )
    parts = urlsplit(address)
    without_password = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return f"python -m pip install {shlex.quote(f'{name} @ {without_password}')}"


def _needs(folder: Path) -> list[str]:
    """Return the command that installs the project's own requirements; none if it states none."""
    words = ["-r requirements.txt"] if (folder / "requirements.txt").is_file() else []
    words += ["-e ."] if any((folder / name).is_file() for name in ("pyproject.toml", "setup.py")) else []
    return [" ".join(["python -m pip install", *words])] if words else []


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
