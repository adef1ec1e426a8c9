"""Options that several commands share, one decorator a group, and how their values become specs.

`workload_options` passes `batch_size, image_size, seq_len, dtype, optimizer, seed`; `effort_options` passes
`launches, rounds, steps, quick, rigorous`; `run_options` passes `fabric, device, json_to, timeout_s, output`. `--debug`
is added to every command by `xbench.cli`. Only click is imported here: `--help` stays fast.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from xbench.commands.completing import RUNS, complete_fabric, complete_file
from xbench.errors import SpecError
from xbench.units import parse_seconds

if TYPE_CHECKING:
    from xbench.records import AnyRecord
    from xbench.spec import Effort

F = TypeVar("F", bound=Callable[..., Any])
Parsed = TypeVar("Parsed")


def _timeout(context: click.Context, parameter: click.Parameter, value: str) -> float:
    """Seconds from 90, 90s or 1.5min, or click's usage error, which names the option."""
    try:
        seconds = parse_seconds(value)
    except SpecError as error:
        raise click.BadParameter(f"{error}: {error.hint}", context, parameter) from None
    if not 1 <= seconds <= 86_400:
        raise click.BadParameter(f"{value} is not in the range 1 s to 86400 s", context, parameter)
    return seconds


def _all(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for option in reversed(options):  # the last decorator applied stands first in --help
            command = option(command)
        return command

    return decorate


def workload_options(command: F) -> F:
    """`--batch-size --image-size --seq-len --dtype --optimizer --seed`: see `xbench.workloads.parse_workload`."""
    return _all(
        click.option("--batch-size", type=click.IntRange(1, 1_000_000), help="Samples a rank trains in a step."),
        click.option("--image-size", type=click.IntRange(1, 100_000), help="Height and width of images, in pixels."),
        click.option("--seq-len", type=click.IntRange(1, 10_000_000), help="Tokens a sample, for text models."),
        click.option(
            "--dtype",
            type=click.Choice(["fp32", "bf16"]),
            default="fp32",
            show_default=True,
            help="Type of weights and gradients.",
        ),
        click.option(
            "--optimizer",
            type=click.Choice(["sgd", "adamw"]),
            default="sgd",
            show_default=True,
            help="Optimizer used for the step.",
        ),
        click.option(
            "--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Seed of weights and data."
        ),
    )(command)


def effort_options(command: F) -> F:
    """`--launches --rounds --steps --quick --rigorous`: see `effort_from`."""
    return _all(
        click.option("--launches", type=click.IntRange(1, 100), help="Independent starts of the ranks.  [default: 2]"),
        click.option("--rounds", type=click.IntRange(1, 1000), help="Blocks of every mode a launch.  [default: 6]"),
        click.option("--steps", type=click.IntRange(2, 10_000), help="Timed steps a block.  [default: about 3 s]"),
        click.option("--quick", is_flag=True, help="1 launch of 6 short rounds: a first look."),
        click.option("--rigorous", is_flag=True, help="5 launches of 8 rounds: for numbers that you will quote."),
    )(command)


def run_options(command: F) -> F:
    """`--fabric --device --json --timeout --output`."""
    return _all(
        click.option("--fabric", default="auto", show_default=True, metavar="SPEC", shell_complete=complete_fabric,
                     help="What connects the ranks: local:ranks=N, shaped:hosts=H,rate=R, emulated:workers=N,rate=R, "
                     "cluster, or auto."),
        device_option("auto", help="Where to compute; auto takes GPUs where there are any, cuda:3 that one."),
        json_option,
        timeout_option,
        click.option("--output", type=click.Path(file_okay=False, path_type=Path), default=RUNS, show_default=True,
                     help="Folder that keeps each run's record."),
    )(command)  # fmt: skip


class _Device(click.Choice[str]):
    """`auto`, `cpu`, `cuda`, or `cuda:3` for one GPU."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """See `click.ParamType.convert`."""
        if isinstance(value, str) and re.fullmatch(r"cuda:[0-9]+", value):
            return value
        return str(super().convert(value, param, ctx))


def device_option(default: str, **options: Any) -> Callable[[F], F]:
    """`--device auto|cpu|cuda|cuda:N`, passed as `device`."""
    choice = _Device(["auto", "cpu", "cuda"])
    shown = "[auto|cpu|cuda|cuda:N]"
    return click.option("--device", type=choice, default=default, show_default=True, metavar=shown, **options)


def _compress(context: click.Context, parameter: click.Parameter, value: str) -> str | None:
    return None if value == "none" else value


def carry_options(command: F) -> F:
    """`--copies --compress --backend`: None is the fastest way for the backend, and gradients as they are."""
    return _all(
        click.option("--copies", type=click.Choice(["views", "coalesced", "fused"]),
                     help="How gradients get into a collective and back.  [default: views]"),
        click.option("--compress", type=click.Choice(["none", "bf16"]), callback=_compress, default="none",
                     show_default=True, help="What fp32 gradients travel as, in every mode."),
        backend_option(["torch", "sockets", "horovod"]),
    )(command)  # fmt: skip


def backend_option(choices: Sequence[str]) -> Callable[[F], F]:
    """`--backend`, passed as `collectives`."""
    carriers = {"torch": "torch's", "sockets": "our own over TCP for CPUs", "horovod": "Horovod's, except in DDP"}
    *others, last = [carriers[choice] for choice in choices]
    told = f"Whose all-reduce carries gradients: {', '.join(others)} or {last}."
    return click.option(
        "--backend", "collectives", type=click.Choice(choices), default="torch", show_default=True,
        help=told,
    )  # fmt: skip


def overlap_option(command: F) -> F:
    """`--overlap backward|forward`."""
    return click.option(
        "--overlap", type=click.Choice(["backward", "forward"]), default="backward", show_default=True,
        help="What auto's gradients may overlap: forward adds dear and priority to its candidates.",
    )(command)  # fmt: skip


def timeout_option(command: F) -> F:
    """`--timeout DURATION`, passed as `timeout_s` [s]."""
    return click.option(
        "--timeout", "timeout_s", callback=_timeout, default="120s", metavar="DURATION", show_default=True,
        help="Longest silence of a rank before it counts as hung.",
    )(command)  # fmt: skip


def verbose_option(command: F) -> F:
    """`-v/--verbose`."""
    return click.option(
        "-v", "--verbose", is_flag=True, help="Show every table and note, not only what fits on a screen."
    )(command)


def nvtx_option(command: F) -> F:
    """`--nvtx`."""
    return click.option(
        "--nvtx", is_flag=True, help="Mark steps, buckets and turns for Nsight Systems; for GPUs only."
    )(command)


def json_option(command: F) -> F:
    """`--json FILE|-`, passed as `json_to`: see `write_json`."""
    return click.option(
        "--json",
        "json_to",
        metavar="FILE|-",
        shell_complete=complete_file,
        help="Write the record as JSON too; with - it goes to stdout, and tables go to stderr.",
    )(command)


def effort_from(
    *, launches: int | None, rounds: int | None, steps: int | None, quick: bool = False, rigorous: bool = False
) -> Effort:
    """The effort that the options ask for: a preset, and single values over it.

    Default 2 launches × 6 rounds with blocks of about 3 s; quick 1 × 6 with 4 steps a block; rigorous 5 × 8.
    Raises SpecError for quick and rigorous at once.
    """
    from xbench.spec import Effort

    if quick and rigorous:
        raise SpecError("--quick and --rigorous exclude each other", hint="leave one of them out")
    preset: dict[str, int] = {}
    if quick:
        preset = {"launches": 1, "rounds": 6, "steps": 4, "profile_steps": 8}
    elif rigorous:
        preset = {"launches": 5, "rounds": 8, "profile_steps": 32}
    given = {"launches": launches, "rounds": rounds, "steps": steps}
    return Effort(**preset | {name: value for name, value in given.items() if value is not None})


def check_json(json_to: str | None, option: str = "--json") -> None:
    """Refuse a `--json`, or another output file, that could not be written, before anything is done. SpecError."""
    if json_to is None or json_to == "-":
        return
    path = Path(json_to)
    parent = path.absolute().parent
    try:
        if path.is_dir():
            named = path / f"record.{option.strip('-')}"
            raise SpecError(f"{option}: {json_to!r} is a folder", hint=f"write {named}")
        if not parent.is_dir():
            raise SpecError(f"{option}: the folder of {json_to!r} does not exist", hint=f"mkdir -p {path.parent}")
        writable = os.access(path if path.exists() else parent, os.W_OK)
    except (OSError, ValueError) as error:  # a name too long, or with a NUL in it
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise SpecError(f"{option}: {json_to!r} cannot be written: {reason}") from None
    if not writable:
        raise SpecError(f"{option}: you may not write {json_to!r}", hint=f"{option} FILE writes where you may")


def echo_utf8(text: str) -> None:
    """Write a file's text to stdout as it would be in the file: in UTF-8, whatever the terminal is."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    click.echo(text if encoding == "utf8" else text.encode(), nl=False)


def show_result(
    record: AnyRecord, *taken: str | None, verbose: bool = False, all_layers: bool = False, place: str | None = None
) -> None:
    """Draw the record's tables on stdout, or on stderr where one of the targets `taken` is stdout ('-').

    `place` is the record's path, for commands that are advised; without one they say RECORD.
    """
    from xbench.report.advice import RECORD
    from xbench.report.terminal import make_console, show

    show(record, make_console(stderr="-" in taken), verbose=verbose, all_layers=all_layers, place=place or RECORD)


def write_json(record: AnyRecord, json_to: str | None) -> None:
    """Write the record where `--json` says: nowhere, a file, or stdout. Raises OSError."""
    from xbench.records import dump, save

    if json_to == "-":
        echo_utf8(dump(record))
    elif json_to is not None:
        save(record, Path(json_to))


def check_json_and_csv(json_to: str | None, csv_to: str | None) -> None:
    """Raise SpecError for a target of `--json` or `--csv` that cannot be written, and where both want stdout."""
    check_json(json_to)
    check_json(csv_to, option="--csv")
    if json_to == "-" and csv_to == "-":
        raise SpecError("--json - and --csv - both want stdout", hint="write --csv FILE")


def write_csv(record: AnyRecord, csv_to: str | None) -> None:
    """Write the record's main table where `--csv` says: nowhere, a file, or stdout. Raises OSError."""
    from xbench.report.csv import render

    if csv_to == "-":
        click.echo(render(record), nl=False)
    elif csv_to is not None:
        Path(csv_to).write_text(render(record), encoding="utf-8")


def parsed(option: str, parse: Callable[[str], Parsed], text: str) -> Parsed:
    """The value, or the parser's SpecError with the option's name in it."""
    try:
        return parse(text)
    except SpecError as error:
        raise SpecError(f"{option}: {error}", hint=error.hint) from None
