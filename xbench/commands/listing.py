"""`xbench list`: runs, workloads, modes, fabrics, policies and traces, from tables that need no torch.

Every list is rows with a `name`. WORD, `--names`, `--json` and `--most` treat all lists alike; without them each list
has a form of its own for people.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from xbench.distribution import install_extra
from xbench.errors import SpecError, unknown
from xbench.modes import MODES
from xbench.record_files import results_folder, run_folders
from xbench.registry import Entry
from xbench.schedules import obstacle
from xbench.spec import WorkloadSpec
from xbench.units import format_count
from xbench.workloads import catalog, libraries
from xbench.workloads.parse import resolve

WHAT = {
    "runs": "earlier runs, newest first",
    "workloads": "models to train; WORD may be timm/ or hf/ and the beginning of a name",
    "modes": "schedules and paired modes",
    "fabrics": "what connects ranks, for --fabric",
    "policies": "policies that share a cluster",
    "traces": "kinds of traces of jobs",
}
MAX_NAMES = 60
"""Most names of timm's models that are listed one by one."""

MOST_RUNS = 10


@click.command("list", short_help="List runs, workloads, modes, fabrics, policies or traces.")
@click.argument("what", required=False, metavar="[" + "|".join(WHAT) + "]", type=click.Choice(list(WHAT)))
@click.argument("word", default="")
@click.option("--names", is_flag=True, help="Only the names, one a line.")
@click.option("--json", "as_json", is_flag=True, help="The same facts as JSON.")
@click.option("--most", type=click.IntRange(1, 1_000_000), metavar="N", help="How many.  [default: 10 runs, else all]")
def listing(what: str | None, word: str, names: bool, as_json: bool, most: int | None) -> None:
    """List runs, workloads, modes, fabrics, policies or traces; with WORD, those whose name holds it."""
    if names and as_json:
        raise SpecError("--names and --json exclude each other", hint="--json holds the names too")
    if what is None:
        _print_pairs(WHAT.items())
        return
    if what == "runs":
        _list_runs(word, most or MOST_RUNS, names=names, as_json=as_json)
        return
    found = _rows(what, word)
    rows = found[:most]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    elif names:
        click.echo("\n".join(row["name"] for row in rows))
    elif what == "workloads":
        _print_workloads(rows, word)
    elif what == "modes":
        _print_modes(rows, word)
    else:
        _print_pairs((row["name"], row["summary"]) for row in rows)
    if len(rows) < len(found):
        _say_more(len(rows), len(found))


def _rows(what: str, word: str) -> list[dict[str, Any]]:
    """Return the rows whose name holds the word. Raises SpecError where there is none."""
    library = libraries.split_library(word) if what == "workloads" else None
    if library is not None:
        libraries.check_installed(library[0])
    rows = workload_rows(library and library[0]) if what == "workloads" else _table_rows(what)
    found = [row for row in rows if word.lower() in row["name"].lower()]
    if found:
        return found
    if library is not None:
        libraries.check_known(word)
    if what == "workloads":
        raise catalog.unknown_workload(word)
    raise unknown("policy" if what == "policies" else what[:-1], word, [row["name"] for row in rows])


def _table_rows(what: str) -> list[dict[str, Any]]:
    if what == "modes":
        return _mode_rows()
    entries: Iterable[Entry]
    if what == "fabrics":
        from xbench.fabrics import FABRICS as entries
    elif what == "policies":
        from xbench.cluster.policies import POLICIES as entries
    else:
        from xbench.cluster.traces import TRACES as entries
    return [{"name": entry.name, "summary": entry.summary} for entry in entries]


def _print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names, each with its summary."""
    found = list(pairs)
    width = max(len(name) for name, _ in found)
    for name, summary in found:
        click.echo(f"{name:<{width}}  {summary}")


def _say_more(shown: int, found: int) -> None:
    click.echo(f"{found - shown} more: --most {found} lists them", err=True)


# --- runs ---------------------------------------------------------------------------------------------------------


def _list_runs(word: str, most: int, *, names: bool, as_json: bool) -> None:
    """List the runs whose folder's name holds the word."""
    from xbench.report import runs as told
    from xbench.report.console import make_console

    folders = [folder for folder in run_folders(results_folder()) if word.lower() in folder.name.lower()]
    shown: list[Path] = folders[:most]
    if names:
        click.echo("".join(f"{folder}\n" for folder in shown), nl=False)
    elif as_json:
        found = [told.read_run(folder) for folder in shown]
        click.echo(json.dumps(told.as_json(found), indent=1, ensure_ascii=False))
        return
    else:
        told.render_runs([told.read_run(folder) for folder in shown], make_console(stderr=False))
    if not folders:
        click.echo(f"no runs in {results_folder()}" + (f" whose name holds {word!r}" if word else ""), err=True)
    elif len(folders) > most:
        _say_more(most, len(folders))


# --- workloads ----------------------------------------------------------------------------------------------------


def _print_workloads(rows: list[dict[str, Any]], word: str) -> None:
    if word.startswith("timm/"):
        _print_names([row["name"] for row in rows])
        return
    _print_table(rows)
    if word:
        return
    click.echo()
    for prefix, module in libraries.LIBRARIES.items():
        count = len(libraries.library_models(prefix))
        remedy = f"xbench list workloads {prefix}/ lists them" if count else install_extra(prefix)
        click.echo(f"{prefix}/NAME: {f'{count} ' if count else ''}models of {module}: {remedy}")


def workload_rows(library: str | None = None) -> list[dict[str, Any]]:
    """Return the `name, family, summary, parameters, input, cpu, cuda` of every workload, or of a library's.

    `cpu` and `cuda` hold the default sizes on the device. Values unknown without torch are None: those of timm.
    """
    if library is None:
        summaries = {entry.name: entry.summary for entry in catalog.WORKLOADS}
        summaries |= {name: f"torchvision's {name}" for name in sorted(catalog.installed_models() - summaries.keys())}
    else:
        summaries = {name: libraries.library_summary(name) for name in libraries.library_models(library)}
    rows = []
    for name, summary in summaries.items():
        family = "vision" if library == "timm" else catalog.family_of(name)
        row: dict[str, Any] = {"name": name, "family": family, "summary": summary, "parameters": None, "input": None}
        if library == "timm":
            rows.append(row | {"cpu": None, "cuda": None})
            continue
        if family == "vision":
            facts = catalog.facts_of(name)
            sizes = f"{facts.multiple}, {2 * facts.multiple}, …" if facts.multiple > 1 else f"≥ {facts.minimum}"
            row |= {"parameters": facts.parameters, "input": f"{sizes} px"}
        elif family in ("text", "speech"):
            sequences = catalog.sequence_facts_of(name)
            limit = f"≤ {sequences.positions} " if sequences.positions else ""
            row |= {"parameters": sequences.parameters, "input": limit + sequences.unit}
        elif family == "synthetic":
            row |= {"input": "64 numbers"}
        for device in ("cpu", "cuda"):
            spec = resolve(WorkloadSpec(name=name), device)
            row[device] = spec.model_dump(include={"batch_size", "image_size", "seq_len"}, exclude_none=True)
        rows.append(row)
    return rows if library is None else sorted(rows, key=lambda row: row["family"])


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("workload", "parameters", "input", "CPU default", "GPU default"):
        table.add_column(header, no_wrap=True, justify="right" if header == "parameters" else "left")
    previous = rows[0]["family"]
    for row in rows:
        unit = " frames" if row["family"] == "speech" else " tokens"
        if row["family"] != previous:
            table.add_row()
            previous = row["family"]
        table.add_row(
            row["name"],
            format_count(row["parameters"]),
            row["input"] or "–",
            *(_sizes(row[device], unit) for device in ("cpu", "cuda")),
        )
    console = Console(highlight=False)
    console.print(table)
    for row in rows:
        if row["family"] == "synthetic":
            console.print(f"\nsynthetic: {row['summary']}", markup=False, soft_wrap=True)


def _sizes(sizes: dict[str, int], sequence_unit: str) -> str:
    """Format sizes as '4 × 96 px', '2 × 32 tokens' or '8'."""
    if not sizes:
        return "–"
    units = {"image_size": " px", "seq_len": sequence_unit}
    return " × ".join(f"{size}{units.get(key, '')}" for key, size in sizes.items())


def _print_names(names: list[str]) -> None:
    """Print names in columns; of more than 60 their first words, with the number of names that begin so."""
    from rich.columns import Columns
    from rich.console import Console

    console = Console(highlight=False)
    if len(names) <= MAX_NAMES:
        console.print(Columns(names, column_first=True), markup=False)
        return
    counted = Counter(re.split(r"[_0-9]", name, maxsplit=1)[0] for name in names)
    console.print(Columns([f"{start}… {count}" for start, count in sorted(counted.items())], column_first=True))
    console.print(
        f"\n{len(names)} models. xbench list workloads {names[0].partition('/')[0]}/WORD lists those that begin so; "
        "--names lists all.", soft_wrap=True,
    )  # fmt: skip


# --- modes --------------------------------------------------------------------------------------------------------


def _mode_rows() -> list[dict[str, Any]]:
    """Return `name, summary, jobs, carrier, unavailable` of every mode; `unavailable` is why it cannot run here."""
    rows = []
    for info in MODES:
        why = obstacle(info.name)
        rows.append(
            {
                "name": info.name,
                "summary": info.summary,
                "jobs": 2 if info.paired else 1,
                "carrier": info.base_schedule if info.paired else None,
                "unavailable": why and (f"{why}; {info.remedy}" if info.remedy else why),
            }
        )
    return rows


def _print_modes(rows: list[dict[str, Any]], word: str) -> None:
    width = max(len(row["name"]) for row in rows)
    for title, jobs in (("one job:", 1), ("two jobs that share the devices:", 2)):
        found = [row for row in rows if row["jobs"] == jobs]
        if found:
            click.echo(title)
        for row in found:
            carrier = f" (gradients exchanged with {row['carrier']})" if row["carrier"] else ""
            missing = f" [unavailable: {row['unavailable']}]" if row["unavailable"] else ""
            click.echo(f"  {row['name']:<{width}}  {row['summary']}{carrier}{missing}")
    for name, why in MODES.broken.items() if not word else ():
        click.echo(f"{name} cannot be imported: {why}", err=True)
