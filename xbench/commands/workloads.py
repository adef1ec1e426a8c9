"""`xbench workloads` and `modes`: what runs can train, and by which schedules, from tables that need no torch."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import click

from xbench.distribution import install_extra
from xbench.errors import SpecError
from xbench.modes import MODES
from xbench.schedules import obstacle
from xbench.spec import WorkloadSpec
from xbench.units import format_count
from xbench.workloads.catalog import (
    WORKLOADS,
    facts_of,
    family_of,
    installed_models,
    sequence_facts_of,
    unknown_workload,
)
from xbench.workloads.libraries import (
    LIBRARIES,
    check_installed,
    check_known,
    library_models,
    library_summary,
    split_library,
)
from xbench.workloads.parse import resolve

MAX_NAMES = 60
"""Most names of timm's models that are listed one by one."""


@click.command(name="workloads", short_help="List the workloads, or those whose name holds a word.")
@click.argument("word", required=False, default="")
@click.option("--names", is_flag=True, help="Only the names, one a line.")
@click.option("--json", "as_json", is_flag=True, help="The same facts as JSON.")
def workloads(word: str, names: bool, as_json: bool) -> None:
    """List the workloads, or those whose name holds WORD.

    WORD may be timm/ or hf/ and the beginning of a name: models of timm and of Hugging Face transformers, if installed.
    Beside these, path/to/train.py:make is your own model: a function without arguments that returns (model, batch,
    loss), with batch = (inputs, targets).
    """
    if names and as_json:
        raise SpecError("--names and --json exclude each other", hint="--json holds the names too")
    library = split_library(word)
    if library is not None:
        check_installed(library[0])
    rows = [row for row in listing(library and library[0]) if word.lower() in row["name"].lower()]
    if not rows and library is not None:
        check_known(word)
    if not rows:
        raise unknown_workload(word)
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    elif names:
        click.echo("\n".join(row["name"] for row in rows))
    elif library is not None and library[0] == "timm":
        _print_names([row["name"] for row in rows])
    else:
        _print_table(rows)
        if not word:
            _print_libraries()


def listing(library: str | None = None) -> list[dict[str, Any]]:
    """Return the `name, family, summary, parameters, input, cpu, cuda` of every workload, or of a library's.

    `cpu` and `cuda` hold the default sizes on the device. Values unknown without torch are None: those of timm.
    """
    if library is None:
        summaries = {entry.name: entry.summary for entry in WORKLOADS}
        summaries |= {name: f"torchvision's {name}" for name in sorted(installed_models() - summaries.keys())}
    else:
        summaries = {name: library_summary(name) for name in library_models(library)}
    rows = []
    for name, summary in summaries.items():
        family = "vision" if library == "timm" else family_of(name)
        row: dict[str, Any] = {"name": name, "family": family, "summary": summary, "parameters": None, "input": None}
        if library == "timm":
            rows.append(row | {"cpu": None, "cuda": None})
            continue
        if family == "vision":
            facts = facts_of(name)
            sizes = f"{facts.multiple}, {2 * facts.multiple}, …" if facts.multiple > 1 else f"≥ {facts.minimum}"
            row |= {"parameters": facts.parameters, "input": f"{sizes} px"}
        elif family in ("text", "speech"):
            sequences = sequence_facts_of(name)
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


def _print_libraries() -> None:
    """Print a line for each library: how many models it has, or how it is installed."""
    click.echo()
    for prefix, module in LIBRARIES.items():
        count = len(library_models(prefix))
        remedy = f"xbench workloads {prefix}/ lists them" if count else install_extra(prefix)
        click.echo(f"{prefix}/NAME: {f'{count} ' if count else ''}models of {module}: {remedy}")


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
        f"\n{len(names)} models. xbench workloads {names[0].partition('/')[0]}/WORD lists those whose name begins with "
        "WORD; --names lists all.", soft_wrap=True,
    )  # fmt: skip


@click.command(name="modes", short_help="List the schedules and paired modes that compare takes.")
def modes() -> None:
    """List the schedules and paired modes that compare takes.

    A paired mode takes a single-job schedule as its carrier, as in crossover:mgwfbp; its default is shown.
    """
    width = max(map(len, MODES.names()))
    for title, paired in (("one job:", False), ("two jobs that share the devices:", True)):
        click.echo(title)
        for info in MODES:
            if info.paired is paired:
                carrier = f" (gradients exchanged with {info.base_schedule})" if paired else ""
                why = obstacle(info.name)
                remedy = f"; {info.remedy}" if info.remedy else ""
                missing = f" [unavailable: {why}{remedy}]" if why else ""
                click.echo(f"  {info.name:<{width}}  {info.summary}{carrier}{missing}")
    for name, why in MODES.broken.items():
        click.echo(f"{name} cannot be imported: {why}", err=True)
