"""Shell completion of workloads, modes, fabrics and results. Each function is a `shell_complete` callback of click.

The callbacks read registries and the file system, so that pressing Tab imports no torch. A word that they do not know,
such as the value behind `rate=`, stays as it was typed.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from xbench.config import RUNS
from xbench.record_files import RECORD, run_folders

Items = list[CompletionItem[str]]
Complete = Callable[[click.Context, click.Parameter, str], Items]

LATEST = "latest"
RATES = ("100mbit", "1gbit", "10gbit", "25gbit", "100gbit")


def complete_workload(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """Complete a workload's name, or a Python file and the function in it that makes a workload.

    A library's models are completed behind its prefix: `timm/`, `hf/`.
    """
    from xbench.workloads import WORKLOADS
    from xbench.workloads.catalog import installed_models
    from xbench.workloads.libraries import LIBRARIES, library_models, library_summary, split_library

    path, colon, word = typed.partition(".py:")
    if colon:
        return _items(f"{path}.py:", _factories(Path(f"{path}.py")), word)
    summaries = {entry.name: entry.summary for entry in WORKLOADS}
    summaries |= {name: f"torchvision's {name}" for name in sorted(installed_models() - summaries.keys())}
    library = split_library(typed)
    if library is not None:
        summaries = {name: library_summary(name) for name in library_models(library[0])}
    elif typed:
        summaries |= {f"{prefix}/": f"models of {module}" for prefix, module in LIBRARIES.items()}
    named, files = _items("", summaries, typed), _paths(typed, ".py", after=":")
    return named + [item for item in files if not named or not item.value.endswith("/")]


def complete_listed(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """Complete a workload's name behind `xbench list workloads`."""
    return complete_workload(context, parameter, typed) if context.params.get("what") == "workloads" else []


def complete_policy(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """Complete one cluster policy."""
    from xbench.cluster.policies import POLICIES

    return _items("", {entry.name: entry.summary for entry in POLICIES}, typed)


def complete_mode(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """Complete one mode, and after a paired one's ':' the schedule that carries its gradients, or its processes.

    After a ':' it completes the other forms of a mode.
    """
    from xbench.modes import MODES
    from xbench.schedules import PROCESSES, carries

    name, colon, word = typed.partition(":")
    if not colon:
        return _items("", {info.name: info.summary for info in MODES}, typed)
    if name not in MODES or not MODES.entry(name).paired:
        forms = {info.name: info.summary for info in MODES if info.name.startswith(f"{name}:")}
        return _items("", forms, typed)
    found = {info.name: info.summary for info in MODES if carries(info.name, MODES.entry(name))}
    if MODES.entry(name).sharing == "in turns":
        found |= {f"{PROCESSES}=1": "both jobs in one process on each device",
                  f"{PROCESSES}=2": "a process for each job on each device"}  # fmt: skip
    return _items(f"{name}:", found, word)


def complete_fabric(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """Complete a fabric, then its options in turn. Only rates have suggested values."""
    from xbench.fabrics import FABRICS

    name, colon, options = typed.partition(":")
    if not colon:
        found = {entry.name + (":" if entry.facts.get("keys") else ""): entry.summary for entry in FABRICS}
        return _items("", found, typed)
    if name not in FABRICS:
        return []
    before, comma, word = options.rpartition(",")
    start = f"{name}:{before}{comma}"
    key, equals, value = word.partition("=")
    if equals:
        return _items(f"{start}{key}=", dict.fromkeys(RATES), value) if key == "rate" else []
    given = {piece.partition("=")[0] for piece in before.split(",")}
    keys = [one for one in FABRICS.entry(name).facts.get("keys", ()) if one not in given]
    return _items(start, {f"{one}=": None for one in keys}, word)


def complete_result(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """Complete a record or the folder of a run. Without a typed word, `latest` and the newest runs come first."""
    runs = run_folders(RUNS)
    newest = [LATEST] if runs and LATEST.startswith(typed) else []
    if typed:
        runs = []
    files = [item for item in _paths(typed or "results/", ".json") if not item.value.endswith(".trace.json")]
    return [CompletionItem(word) for word in [*newest, *map(str, runs)]] + files


def complete_file(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """Leave the completion of any file to the shell."""
    return [CompletionItem(typed, type="file")]


def listed(complete: Complete) -> Complete:
    """Return a completion for comma-separated words: it completes the one after the last comma.

    Earlier words and their options, such as `fusion=32`, stay, and are not suggested again.
    """

    def complete_last(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
        before, comma, word = typed.rpartition(",")
        taken = {name for piece in before.split(",") for name in (piece, piece.partition(":")[0])}
        return [
            CompletionItem(before + comma + item.value, help=item.help)
            for item in complete(context, parameter, word)
            if item.value not in taken
        ]

    return complete_last


def _items(before: str, found: dict[str, str] | dict[str, None], word: str) -> Items:
    return [CompletionItem(before + name, help=text) for name, text in found.items() if name.startswith(word)]


def _paths(typed: str, suffix: str, after: str = "") -> Items:
    """Return files with this suffix and folders whose path begins with `typed`. A run's folder ends without a slash."""
    folder, name = os.path.split(typed)
    found: Items = []
    there: list[Path] = []
    with suppress(OSError):
        there = sorted(Path(folder or ".").iterdir())
    for path in there:
        if not path.name.startswith(name) or (path.name.startswith(".") and not name.startswith(".")):
            continue
        shown = os.path.join(folder, path.name)
        if path.is_dir():
            found.append(CompletionItem(shown if (path / RECORD).is_file() else f"{shown}/"))
        elif path.suffix == suffix:
            found.append(CompletionItem(shown + after))
    return found


def _factories(path: Path) -> dict[str, None]:
    """Return the public functions of a Python file that need no arguments. The file is parsed, not run."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return {}
    return {
        node.name: None
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not _needs_arguments(node.args)
    }


def _needs_arguments(taken: ast.arguments) -> bool:
    return len(taken.posonlyargs) + len(taken.args) > len(taken.defaults) or None in taken.kw_defaults


complete_modes = listed(complete_mode)
complete_policies = listed(complete_policy)
