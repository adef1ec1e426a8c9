"""`xbench profile`: time every layer of a training step, fit the network, and plan schedules."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from xbench.commands.compare import run_and_render
from xbench.commands.options import ThemedCommand, check_json, examples, json_option, show_run, takes, verbose_option
from xbench.config import ProfileConfig
from xbench.errors import SpecError
from xbench.record_files import command_line

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=Callable[..., Any])


def _files(flag: str, name: str, text: str) -> Callable[[F], F]:
    """Add an option that takes a file, and may be repeated."""
    return click.option(flag, name, metavar="FILE", multiple=True, type=click.Path(path_type=Path), help=text)


@click.command(
    "profile",
    cls=ThemedCommand,
    short_help="Time every layer of a training step, fit the network, plan schedules.",
    epilog=examples(
        "xbench profile resnet50",
        "xbench profile train.py:make --fabric local:ranks=2 -v > profile.txt",
        "xbench profile --trace rank0.json.gz --trace rank1.json.gz",
    ),
)
@click.argument("names", metavar="[WORKLOAD]", default="resnet50")
@_files("--trace", "traces", "Trace of torch.profiler to profile in place of a run; one file a rank; may be repeated.")
@click.option(
    "--model",
    metavar="WORKLOAD",
    help="Model that was traced, for names and sizes of gradients; with --trace.",
)
@_files("--link", "links", "Output of nccl-tests, NCCL Inspector, or a CSV with T(M); with --trace; may be repeated.")
@click.option("--all", "all_layers", is_flag=True, help="Show every layer, not only the ten slowest.")
@takes(
    ProfileConfig, "effort", "workloads", "fabric", "device", json_option, "timeout_s", "output", verbose_option,
    "nvtx", "copies", "compress", "collectives",
)  # fmt: skip
def profile(
    config: ProfileConfig,
    all_layers: bool,
    json_to: str | None,
    verbose: bool,
    traces: tuple[Path, ...],
    model: str | None,
    links: tuple[Path, ...],
) -> int:
    """Time every layer of a training step, fit the network, plan schedules.

    WORKLOAD is a name from `xbench workloads` or path/to/train.py:make. With a fabric of more than one rank the
    all-reduce is measured from 1 KiB to the whole gradient (or 4 s), and every schedule is planned from that.

    With --trace nothing is run: the profile comes from the profiler traces of a training that you already have.
    """
    if traces:
        _refuse_measuring_options()
        for option, paths in (("--trace", traces), ("--link", links)):
            missing = next((path for path in paths if not os.path.exists(path)), None)
            if missing is not None:
                raise SpecError(f"{option}: there is no file {str(missing)!r}")
        return _profile_traces(config, traces, model, links, json_to, verbose=verbose, all_layers=all_layers)
    for option, given in (("--model", model), ("--link", links)):
        if given:
            raise SpecError(f"{option} belongs to --trace, and there is none", hint="add --trace FILE")
    return run_and_render(config, json_to, verbose=verbose, all_layers=all_layers)


_LARGE_BYTES = 50 * 2**20
"""Size from which reading a file takes long enough to say how far it is."""

_WITH_TRACE = ("traces", "model", "links", "all_layers", "json_to", "verbose", "output", "debug")
"""Parameters that have a meaning where nothing is run."""


def _refuse_measuring_options() -> None:
    """Raise SpecError for a workload or an option of a measurement beside --trace."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE
        if given and name == "names":
            raise SpecError("--trace profiles what was traced, so no WORKLOAD goes with it", hint="name it as --model")
        if given and name not in _WITH_TRACE:
            raise SpecError(f"{parameter.opts[0]} measures, and --trace runs nothing", hint="leave one of them out")


def _profile_traces(
    config: ProfileConfig,
    traces: tuple[Path, ...],
    model: str | None,
    links: tuple[Path, ...],
    json_to: str | None,
    *,
    verbose: bool,
    all_layers: bool,
) -> int:
    """Make a profile from traces, keep it in a run folder, and show it."""
    check_json(json_to)

    from xbench.report.console import make_console
    from xbench.runs.run_folder import check_output, keep, new_run_folder
    from xbench.traces.record import read_traces
    from xbench.workloads import parse_workload

    check_output(config.output)
    spec = parse_workload(model) if model is not None else None
    console = make_console()
    record = read_traces(traces, command_line(), model=spec, links=links, on_progress=_progress(console))
    folder = new_run_folder(config.output, f"profile-{record.workload.title}")
    path = keep(record, folder / "record.json")
    show_run(console, record, path, json_to, verbose=verbose, all_layers=all_layers, place=str(path))
    return 0


def _progress(console: Console) -> Callable[[Path, float], None]:
    """Return a listener that says, every tenth of a large file, how much of it was read."""
    said: dict[Path, int] = {}

    def listen(path: Path, share: float) -> None:
        tenths = int(share * 10)
        if path.stat().st_size > _LARGE_BYTES and tenths > said.get(path, 0):
            said[path] = tenths
            console.print(f"{path.name}: {tenths * 10} % read", style="dim", highlight=False, markup=False)

    return listen
