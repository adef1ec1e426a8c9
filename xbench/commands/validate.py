"""`xbench validate`: hold predictions against measured steps, over a matrix of workloads and links."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from xbench.commands.completing import RUNS, complete_modes, complete_result, complete_workload, listed
from xbench.commands.options import (
    backend_option,
    check_json,
    json_option,
    overlap_option,
    show_result,
    timeout_option,
    write_json,
)
from xbench.commands.results import ResultPath
from xbench.commands.themes import ThemedCommand, examples
from xbench.errors import SpecError
from xbench.modes import COMPARED

if TYPE_CHECKING:
    from xbench.spec import FabricSpec

WORKLOADS = "transformer-tiny,mobilenet_v2,resnet18,densenet121,resnet50,vgg11"
RATES = "10gbit,1gbit,100mbit"
MOST_HOSTS = 8


@click.command(
    "validate",
    cls=ThemedCommand,
    short_help="Hold predictions against measured steps, over a matrix of workloads and links.",
    epilog=examples(
        "xbench validate --workloads resnet18 --rates 1gbit",
        "xbench validate --resume latest",
    ),
)
@click.option("--workloads", default=WORKLOADS, show_default=True, metavar="A,B,...",
              shell_complete=listed(complete_workload), help="Workloads: names, or file.py:make.")  # fmt: skip
@click.option(
    "--rates", default=RATES, show_default=True, metavar="R,S,...", help="Rates of the links, as tc(8) writes them."
)
@click.option(
    "--hosts",
    type=click.IntRange(2, MOST_HOSTS),
    default=2,
    show_default=True,
    help="Hosts to measure on: network namespaces.",
)
@click.option("--modes", default=COMPARED, show_default=True, metavar="A,B,...", shell_complete=complete_modes,
              help="Single-job modes to predict and to measure.")  # fmt: skip
@overlap_option
@backend_option(["torch", "sockets"])
@click.option("--held-out", type=click.IntRange(2, MOST_HOSTS), metavar="H",
              help="Also run on H hosts, and predict that from what was measured on --hosts.")  # fmt: skip
@click.option("--cell-minutes", type=click.FloatRange(0.1, 600), default=2.5, show_default=True,
              help="About how long the timed blocks of a cell may take.")  # fmt: skip
@click.option("--resume", type=ResultPath(), metavar="RESULT", shell_complete=complete_result,
              help="Go on from this validation: its cells are kept.")  # fmt: skip
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="cpu", show_default=True,
              help="Where to compute.")  # fmt: skip
@click.option("--markdown", "markdown_to", metavar="FILE|-", help="Write the tables as Markdown too.")
@json_option
@timeout_option
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), default=RUNS, show_default=True,
              help="Folder that keeps the record and each cell's.")  # fmt: skip
def validate(
    workloads: str,
    rates: str,
    hosts: int,
    modes: str,
    overlap: str,
    collectives: str,
    held_out: int | None,
    cell_minutes: float,
    resume: Path | None,
    device: str,
    markdown_to: str | None,
    json_to: str | None,
    timeout_s: float,
    output: Path,
) -> int:
    """Hold predictions against measured steps, over a matrix of workloads and links.

    Every workload is profiled and compared on shaped links of every rate: predictions are made from the profile, before
    anything is timed. Shows how far off they were, and whether mode auto kept what it promises. Takes an hour or more;
    the record is saved after every cell, and --resume goes on from it.
    """
    from xbench.fabrics import parse_fabric
    from xbench.modes import mode_info
    from xbench.records import Validation, load
    from xbench.report.drawing import make_console
    from xbench.report.validation import markdown
    from xbench.runtime.validate import ValidateRequest
    from xbench.runtime.validate import validate as run
    from xbench.schedules import parse_modes
    from xbench.workloads import parse_workload

    check_json(json_to)
    check_json(markdown_to, option="--markdown")
    if json_to == "-" and markdown_to == "-":
        raise SpecError("--json - and --markdown - both want stdout", hint="write --markdown FILE")
    chosen = parse_modes(modes)
    for mode in chosen:
        if mode_info(mode.name).gradients == "partial":
            raise SpecError(f"--modes: {mode.text!r} cannot be validated: it trains another network than DDP")
        if mode.paired or mode.text != mode.name:
            raise SpecError(
                f"--modes: {mode.text!r} cannot be validated: it takes single-job modes, each once",
                hint=f"write {mode.carrier}",
            )
    before = load(resume) if resume is not None else None
    if before is not None and not isinstance(before, Validation):
        raise SpecError(
            f"--resume: {str(resume)!r} is a {before.kind} record, and no validation",
            hint="give the folder of a run of xbench validate",
        )
    asked = _listed("--rates", rates)
    request = ValidateRequest(
        workloads=[parse_workload(name) for name in _listed("--workloads", workloads)],
        fabrics=[parse_fabric(f"shaped:hosts={hosts},rate={rate}") for rate in asked],
        modes=chosen,
        held_out=_held_out(held_out, hosts, asked),
        cell_s=60 * cell_minutes,
        device=device,  # type: ignore[arg-type]
        overlap=overlap,  # type: ignore[arg-type]
        collectives=collectives,  # type: ignore[arg-type]
        timeout_s=timeout_s,
        output=output,
        resume=before,
        command=shlex.join(["xbench", *sys.argv[1:]]),
    )
    console = make_console()
    record, path, error = run(request, console)
    console.print()
    show_result(record, json_to, markdown_to)
    console.print(f"\nrecord: {path}", highlight=False, soft_wrap=True)
    write_json(record, json_to)
    if markdown_to == "-":
        click.echo(markdown(record), nl=False)
    elif markdown_to is not None:
        Path(markdown_to).write_text(markdown(record), encoding="utf-8")
    if error is not None:
        raise error
    return 1 if any(cell.error is not None for cell in record.cells) else 0


def _held_out(held_out: int | None, hosts: int, rates: list[str]) -> list[FabricSpec]:
    from xbench.fabrics import parse_fabric

    if held_out is None:
        return []
    if held_out == hosts:
        raise SpecError(f"--held-out: {held_out} hosts are those that are measured", hint=f"try {2 * hosts}")
    return [parse_fabric(f"shaped:hosts={held_out},rate={rate}") for rate in rates]


def _listed(option: str, text: str) -> list[str]:
    """The names between the commas, each once. Raises SpecError for none."""
    found = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise SpecError(f"{option}: {text!r} names nothing", hint="separate names by commas")
    return found
