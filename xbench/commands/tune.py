"""`xbench tune`: profile, plan, time the best candidates against DDP, and print the line to paste."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xbench.commands.completing import complete_modes, complete_workload
from xbench.commands.options import (
    backend_option,
    check_json,
    overlap_option,
    run_options,
    workload_options,
    write_json,
)
from xbench.commands.themes import ThemedCommand, examples
from xbench.errors import RunError, SpecError

if TYPE_CHECKING:
    from xbench.runtime.run import Result
    from xbench.spec import ModeSpec

DEFAULT_MODES = "auto,ddp-tuned,optimal,mgwfbp,single"
MOST_MINUTES = 1440.0
LEAST_MINUTES = 0.25
MOST_MARGIN_PERCENT = 50.0
QUICK_MINUTES = 4.0
QUICK_STEPS = 8
"""Steps that are profiled when there are fewer minutes than that; contention is measured for half as long then."""

KEPT = "tuned.json"


@click.command(
    "tune",
    cls=ThemedCommand,
    short_help="Find the schedule to use for a workload, and print the line to paste.",
    epilog=examples(
        "xbench tune resnet18 --minutes 5",
        "xbench tune train.py:make --overlap forward --keep tuned.json",
    ),
)
@click.argument("workload", shell_complete=complete_workload, default="resnet50")
@click.option("--minutes", type=float, default=10.0, show_default=True, help="How long it may take.")
@click.option("--modes", default=DEFAULT_MODES, show_default=True, metavar="A,B,...", shell_complete=complete_modes,
              help="The candidates, to be timed against ddp; xbench modes lists them.")  # fmt: skip
@click.option("--margin", type=float, default=2.0, show_default=True, metavar="PERCENT",
              help="The least gain that is worth a change.")  # fmt: skip
@click.option("--keep", metavar="FILE", help=f"File that keeps the winner.  [default: {KEPT} beside the record]")
@overlap_option
@backend_option(["torch", "sockets"])
@workload_options
@run_options
def tune(
    workload: str,
    minutes: float,
    modes: str,
    margin: float,
    keep: str | None,
    overlap: str,
    collectives: str,
    batch_size: int | None,
    image_size: int | None,
    seq_len: int | None,
    dtype: str,
    optimizer: str,
    seed: int,
    fabric: str,
    device: str,
    json_to: str | None,
    timeout_s: float,
    output: Path,
) -> int:
    """Find the schedule to use for a workload, and print the line to paste.

    WORKLOAD is a name from `xbench workloads` or path/to/train.py:make [default: resnet50]. Profiles it, plans every
    candidate, and times the best against DDP until the answer is clear or the minutes are spent. The tables go to
    stderr, and what to paste to stdout. Where DDP's default is best already, it says so.
    """
    values: dict[str, Any] = {"batch_size": batch_size, "image_size": image_size, "seq_len": seq_len}
    values |= {"dtype": dtype, "optimizer": optimizer, "seed": seed}
    _within("--minutes", minutes, LEAST_MINUTES, MOST_MINUTES)
    _within("--margin", margin, 0.0, MOST_MARGIN_PERCENT)
    check_json(json_to)
    check_json(keep, "--keep")
    if keep == "-":
        raise SpecError("--keep: '-' is no file", hint="stdout has what to paste; write --keep tuned.json")
    specs = _modes(modes)

    from xbench.fabrics import parse_fabric
    from xbench.report.terminal import make_console
    from xbench.runtime.prepare import RunRequest
    from xbench.runtime.run import execute
    from xbench.runtime.tune import REFERENCE, Tune
    from xbench.spec import Effort
    from xbench.workloads import parse_workload

    request = RunRequest(
        kind="comparison",
        workloads=[parse_workload(workload, **values)],
        modes=specs,
        reference=REFERENCE,
        fabric=parse_fabric(fabric),
        effort=Effort(profile_steps=QUICK_STEPS) if minutes < QUICK_MINUTES else Effort(),
        device=device,
        timeout_s=timeout_s,
        output=output,
        course=Tune(60 * minutes, margin / 100),
        title="tune",
        overlap=overlap,  # type: ignore[arg-type]
        collectives=collectives,  # type: ignore[arg-type]
    )
    result = execute(request, make_console())
    if result.speaks:
        _render(result, margin / 100, minutes, json_to, keep)
    if result.error is not None:
        raise result.error
    return 0


def _render(result: Result, margin: float, minutes: float, json_to: str | None, keep: str | None) -> None:
    """The answer, what it rests on, the files, and what to paste. Raises RunError where nothing could be timed."""
    from xbench.interrupts import interrupts_held
    from xbench.records import Comparison
    from xbench.report.advice import in_ddp, not_run
    from xbench.report.drawing import make_console, say
    from xbench.report.terminal import render_comparison, show
    from xbench.report.tuned import judged, snippet, told
    from xbench.runtime.run_folder import keep as keep_record
    from xbench.runtime.tune import choice_of, tuned_record

    console, record = make_console(), result.record
    assert isinstance(record, Comparison)  # that is what was asked for
    choice = choice_of(record, margin)
    if result.error is not None or choice.best is None:
        show(record, console, place=str(result.path))
        console.print(f"\nrecord: {result.path}", highlight=False, soft_wrap=True)
        write_json(record, json_to)
        if result.error is None:
            raise RunError("nothing could be timed beside ddp, so there is no answer", hint="the report says why")
        return
    title, use = record.jobs[0].workload.title, choice.winner or record.reference
    render_comparison(
        judged(record, margin),
        console,
        told(choice, margin, title, record.fabric.label, minutes=minutes),
        follows=[*in_ddp(use, choice.ratios, str(result.path)), *not_run(record, use)],
    )
    console.print(f"\nrecord: {result.path}", highlight=False, soft_wrap=True)
    write_json(record, json_to)
    if choice.winner is None and choice.kind != "reference":
        say(console, "Nothing to keep: the record holds every candidate's plan.")
        return
    tuned = tuned_record(record, choice, margin, result.plans, str(result.path))
    with interrupts_held():
        place = keep_record(tuned, result.path.parent / KEPT)
        if keep is not None:
            place = keep_record(tuned, Path(keep))
    console.print(f"keep:   {place}\n", highlight=False, soft_wrap=True)
    text = snippet(tuned, str(place.resolve()))
    if json_to == "-":
        console.print(text, highlight=False, soft_wrap=True, end="")
    else:
        click.echo(text, nl=False)


def _modes(text: str) -> tuple[ModeSpec, ...]:
    """The control, ddp, and the candidates. Raises SpecError."""
    from xbench.schedules import MODES, parse_modes

    asked = parse_modes(text)
    for mode in asked:
        if mode.paired:
            raise SpecError(f"--modes: {mode.text!r} is for two jobs, and tune is for one", hint=f"try {DEFAULT_MODES}")
        if not MODES.entry(mode.name).facts.get("synchronous", True) and mode.name != "compute":
            raise SpecError(f"--modes: {mode.text!r} trains another network than DDP, so it cannot be the answer",
                            hint=f"xbench compare --modes ddp,{mode.text} shows its time")  # fmt: skip
        if "@" in mode.text:
            raise SpecError(f"--modes: {mode.text!r} is a second copy, and tune times each candidate once",
                            hint=f"write {mode.name}")  # fmt: skip
    candidates = [mode for mode in asked if mode.name not in ("compute", "ddp")]
    if not candidates:
        raise SpecError(f"--modes: {text!r} names no candidate beside ddp", hint=f"try {DEFAULT_MODES}")
    return (*parse_modes("compute,ddp"), *candidates)


def _within(option: str, value: float, low: float, high: float) -> None:
    """Raise SpecError for a number outside [low, high]."""
    if not (math.isfinite(value) and low <= value <= high):
        close = min(max(value, low), high) if math.isfinite(value) else low
        raise SpecError(f"{option}: {value:g} is not in the range {low:g} to {high:g}", hint=f"try {option} {close:g}")
