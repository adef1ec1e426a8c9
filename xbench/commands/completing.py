"""What completes a word in the shell: workloads, modes, fabrics, results. Each is click's `shell_complete` callback.

They answer from the registries and the file system, so a press of Tab imports no torch. What they do not know, such as
the value behind `rate=`, they leave as it was typed.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from xbench.config import RUNS
from xbench.record_files import run_folders

Items = list[CompletionItem[str]]
Complete = Callable[[click.Context, click.Parameter, str], Items]

RECORD = "record.json"
LATEST = "latest"
RATES = ("100mbit", "1gbit", "10gbit", "25gbit", "100gbit")


def complete_workload(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """A workload's name, or a Python file and the function in it that makes one."""
    from xbench.workloads import WORKLOADS
    from xbench.workloads.torchvision_models import installed_models

    path, colon, word = typed.partition(".py:")
    if colon:
        return _items(f"{path}.py:", _factories(Path(f"{path}.py")), word)
    summaries = {entry.name: entry.summary for entry in WORKLOADS}
    summaries |= {name: f"torchvision's {name}" for name in sorted(installed_models() - summaries.keys())}
    named, files = _items("", summaries, typed), _paths(typed, ".py", after=":")
    return named + [item for item in files if not named or not item.value.endswith("/")]


def complete_modes(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """The mode after the last comma; those before it stay, and so do options such as `fusion=32`."""
    before, comma, word = typed.rpartition(",")
    taken = {piece.partition(":")[0] for piece in before.split(",")}
    return [
        CompletionItem(before + comma + item.value, help=item.help)
        for item in complete_mode(context, parameter, word)
        if item.value not in taken
    ]


def complete_policies(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """The policy of a cluster after the last comma; those before it stay, and so do their options."""
    from xbench.cluster.registry import POLICIES

    before, comma, word = typed.rpartition(",")
    taken = {piece.partition(":")[0] for piece in before.split(",")}
    left = {entry.name: entry.summary for entry in POLICIES if entry.name not in taken}
    return _items(before + comma, left, word)


def complete_policy(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """One policy of a cluster."""
    from xbench.cluster.registry import POLICIES

    return _items("", {entry.name: entry.summary for entry in POLICIES}, typed)


def complete_mode(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """One mode, and after `crossover:` the schedule that carries its gradients."""
    from xbench.schedules import MODES, puts_off

    name, colon, word = typed.partition(":")
    if not colon:
        return _items("", {entry.name: entry.summary for entry in MODES}, typed)
    if name not in MODES or not MODES.entry(name).facts.get("paired"):
        return []
    carriers = {
        entry.name: entry.summary
        for entry in MODES
        if not entry.facts.get("paired")
        and entry.facts.get("synchronous", True)
        and not (name == "crossover" and puts_off(entry.name))
    }
    return _items(f"{name}:", carriers, word)


def complete_fabric(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """A fabric, then its options one after the other; of their values, the usual rates."""
    from xbench.fabrics import FABRICS

    name, colon, options = typed.partition(":")
    if not colon:
        found = [(entry.name, bool(entry.facts.get("keys")), entry.summary) for entry in FABRICS]
        return [
            CompletionItem(f"{name}{':' if more else ''}", help=text)
            for name, more, text in found
            if name.startswith(typed)
        ]
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
    """A record, or the folder of a run; `latest` and the newest runs first where nothing is typed."""
    runs = run_folders(RUNS)
    newest = [LATEST] if runs and LATEST.startswith(typed) else []
    if typed:
        runs = []
    files = [item for item in _paths(typed or "results/", ".json") if not item.value.endswith(".trace.json")]
    return [CompletionItem(word) for word in [*newest, *map(str, runs)]] + files


def complete_file(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """Any file: left to the shell."""
    return [CompletionItem(typed, type="file")]


def listed(complete: Complete) -> Complete:
    """The same for words with commas between them."""

    def complete_last(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
        before, comma, word = typed.rpartition(",")
        return [
            CompletionItem(before + comma + item.value, help=item.help)
            for item in complete(context, parameter, word)
            if item.value not in before.split(",")
        ]

    return complete_last


def _items(before: str, found: dict[str, str] | dict[str, None], word: str) -> Items:
    return [CompletionItem(before + name, help=text) for name, text in found.items() if name.startswith(word)]


def _paths(typed: str, suffix: str, after: str = "") -> Items:
    """Files with this suffix and folders whose path begins as `typed`; of a run's folder, the folder itself."""
    folder, name = os.path.split(typed)
    found = []
    for path in sorted(_listed(Path(folder or "."))):
        if not path.name.startswith(name) or (path.name.startswith(".") and not name.startswith(".")):
            continue
        shown = os.path.join(folder, path.name)
        if path.is_dir():
            found.append(CompletionItem(shown if (path / RECORD).is_file() else f"{shown}/"))
        elif path.suffix == suffix:
            found.append(CompletionItem(shown + after))
    return found


def _listed(folder: Path) -> Iterable[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _factories(path: Path) -> dict[str, None]:
    """The functions without arguments that stand in a Python file, read and not run."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return {}
    return {
        node.name: None
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not _required(node.args)
    }


def _required(arguments: ast.arguments) -> bool:
    positional = [*arguments.posonlyargs, *arguments.args]
    keywords = [default for default in arguments.kw_defaults if default is None]
    return len(positional) > len(arguments.defaults) or bool(keywords)
