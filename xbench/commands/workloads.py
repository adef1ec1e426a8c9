"""`xbench workloads` and `modes`: what runs can train, and by which schedules, from tables that need no torch."""

from __future__ import annotations

import json
from typing import Any

import click

from xbench.commands.completing import complete_workload
from xbench.errors import unknown
from xbench.modes import MODES
from xbench.schedules import obstacle
from xbench.spec import WorkloadSpec
from xbench.units import format_count
from xbench.workloads.catalog import TRANSFORMERS, WORKLOADS, facts_of, installed_models
from xbench.workloads.parse import resolve


@click.command(name="workloads", short_help="List the workloads, or those whose name holds a word.")
@click.argument("word", required=False, default="", shell_complete=complete_workload)
@click.option("--names", is_flag=True, help="Only the names, one a line.")
@click.option("--json", "as_json", is_flag=True, help="The same facts as JSON.")
def workloads(word: str, names: bool, as_json: bool) -> None:
    """List the workloads, or those whose name holds WORD.

    Beside these, path/to/train.py:make is your own model: a function without arguments that returns (model, batch,
    loss), with batch = (inputs, targets).
    """
    rows = [row for row in listing() if word.lower() in row["name"].lower()]
    if not rows:
        raise unknown("workload", word, WORKLOADS.names(), listing="xbench workloads")
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    elif names:
        click.echo("\n".join(row["name"] for row in rows))
    else:
        _print_table(rows)


def listing() -> list[dict[str, Any]]:
    """Return every workload's `name, family, summary, parameters, input, cpu, cuda`.

    `cpu` and `cuda` hold the default sizes on the device. Values unknown without torch are None.
    """
    entries = {entry.name: (entry.facts.get("family", "factory"), entry.summary) for entry in WORKLOADS}
    entries |= {name: ("vision", f"torchvision's {name}") for name in sorted(installed_models() - entries.keys())}
    rows = []
    for name, (family, summary) in entries.items():
        row: dict[str, Any] = {"name": name, "family": family, "summary": summary, "parameters": None, "input": None}
        if family == "vision":
            facts = facts_of(name)
            sizes = f"{facts.multiple}, {2 * facts.multiple}, …" if facts.multiple > 1 else f"≥ {facts.minimum}"
            row |= {"parameters": facts.parameters, "input": f"{sizes} px"}
        elif family == "text":
            text = TRANSFORMERS[name]
            row |= {"parameters": text.parameters, "input": f"≤ {text.positions} tokens"}
        elif family == "synthetic":
            row |= {"input": "64 numbers"}
        for device in ("cpu", "cuda"):
            spec = resolve(WorkloadSpec(name=name), device)
            row[device] = spec.model_dump(include={"batch_size", "image_size", "seq_len"}, exclude_none=True)
        rows.append(row)
    return rows


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("workload", "parameters", "input", "CPU default", "GPU default"):
        table.add_column(header, no_wrap=True, justify="right" if header == "parameters" else "left")
    previous = rows[0]["family"]
    for row in rows:
        if row["family"] != previous:
            table.add_row()
            previous = row["family"]
        table.add_row(
            row["name"], format_count(row["parameters"]), row["input"] or "–", _sizes(row["cpu"]), _sizes(row["cuda"])
        )
    console = Console(highlight=False)
    console.print(table)
    for row in rows:
        if row["family"] == "synthetic":
            console.print(f"\nsynthetic: {row['summary']}", markup=False, soft_wrap=True)


def _sizes(sizes: dict[str, int]) -> str:
    """Format sizes as '4 × 96 px', '2 × 32 tokens' or '8'."""
    if not sizes:
        return "–"
    units = {"image_size": " px", "seq_len": " tokens"}
    return " × ".join(f"{size}{units.get(key, '')}" for key, size in sizes.items())


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
