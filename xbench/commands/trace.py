"""`xbench trace`: the profile of a training from the profiler traces that it wrote."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from xbench.commands import options
from xbench.errors import SpecError
from xbench.record_files import command_line, results_folder

if TYPE_CHECKING:
    from rich.console import Console

_LARGE_BYTES = 50 * 2**20
"""Size from which reading a file takes long enough to say how far it is."""


@click.command(
    "trace",
    cls=options.ThemedCommand,
    short_help="Profile a training from the traces that torch.profiler wrote.",
    epilog=options.examples("xbench trace rank0.json.gz rank1.json.gz", "xbench trace rank0.json.gz --link link.txt"),
)
@click.argument("traces", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("--model", metavar="WORKLOAD",
              help="Model that was traced, for names and sizes of gradients.")  # fmt: skip
@click.option("--link", "links", metavar="FILE", multiple=True, type=click.Path(path_type=Path),
              help="Output of nccl-tests, NCCL Inspector, or a CSV with T(M); may be repeated.")  # fmt: skip
@click.option("--all", "all_layers", is_flag=True, help="Show every layer, not only the ten slowest.")
@options.json_option
@options.verbose_option
def trace(
    traces: tuple[Path, ...],
    model: str | None,
    links: tuple[Path, ...],
    all_layers: bool,
    json_to: str | None,
    verbose: bool,
) -> None:
    """Profile a training from the traces that torch.profiler wrote.

    FILE is the trace of one rank; give each rank's. Nothing is run. The record is an ordinary profile.
    """
    for option, paths in (("FILE", traces), ("--link", links)):
        missing = next((path for path in paths if not os.path.exists(path)), None)
        if missing is not None:
            raise SpecError(f"{option}: there is no file {str(missing)!r}")
    options.check_json(json_to)

    from xbench.report.console import make_console
    from xbench.runs.run_folder import check_output, keep, new_run_folder
    from xbench.traces.record import read_traces
    from xbench.workloads import parse_workload

    output = results_folder()
    check_output(output)
    spec = parse_workload(model) if model is not None else None
    console = make_console()
    record = read_traces(traces, command_line(), model=spec, links=links, on_progress=_progress(console))
    path = keep(record, new_run_folder(output, f"profile-{record.workload.title}") / "record.json")
    options.show_run(console, record, path, json_to, verbose=verbose, all_layers=all_layers, place=str(path))


def _progress(console: Console) -> Callable[[Path, float], None]:
    """Return a listener that says, every tenth of a large file, how much of it was read."""
    said: dict[Path, int] = {}

    def listen(path: Path, share: float) -> None:
        tenths = int(share * 10)
        if path.stat().st_size > _LARGE_BYTES and tenths > said.get(path, 0):
            said[path] = tenths
            console.print(f"{path.name}: {tenths * 10} % read", style="dim", highlight=False, markup=False)

    return listen
