"""`xbench tune`: profile, plan, time the best candidates against DDP, and print the line to paste."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from xbench.commands.options import ThemedCommand, check_targets, examples, json_option, takes, write_json
from xbench.config import TuneConfig
from xbench.errors import RunError, SpecError
from xbench.modes import TUNED

if TYPE_CHECKING:
    from xbench.runs.execute import Result
    from xbench.spec import ModeSpec

QUICK_MINUTES = 4.0
QUICK_STEPS = 8
"""Steps to profile if there are fewer than QUICK_MINUTES; contention is then measured for half as long."""

KEPT = "tuned.json"


@click.command(
    "tune",
    cls=ThemedCommand,
    short_help="Find the schedule to use for a workload, and print the line to paste.",
    epilog=examples(
        "xbench tune resnet18 --minutes 5", "xbench tune train.py:make --modes auto:forward --keep tuned.json"
    ),
)
@click.argument("names", metavar="[WORKLOAD]", default="resnet50")
@takes(
    TuneConfig, "minutes", "modes", "margin_percent", "keep", "workloads", "fabric", "device",
    json_option, "timeout_s",
)  # fmt: skip
def tune(config: TuneConfig, json_to: str | None) -> int:
    """Find the schedule to use for a workload, and print the line to paste.

    WORKLOAD is a name from `xbench list workloads` or path/to/train.py:make [default: resnet50]. Plans every candidate,
    and times the best against DDP until the answer is clear. Tables go to stderr, and what to paste to stdout.
    """
    check_targets({"--json": json_to, "--keep": config.keep})
    if config.keep == "-":
        raise SpecError("--keep: '-' is no file", hint="stdout has what to paste; write --keep tuned.json")
    modes = _candidates(config.modes)

    from xbench.report.console import make_console
    from xbench.runs.execute import execute
    from xbench.runs.tune import REFERENCE, Tune
    from xbench.spec import Effort

    effort = Effort(profile_steps=QUICK_STEPS) if config.minutes < QUICK_MINUTES else Effort()
    config = replace(config, modes=modes, reference=REFERENCE, effort=effort)
    result = execute(config, make_console(), Tune(60 * config.minutes, config.margin_percent / 100))
    if result.speaks:
        _render(result, config, json_to)
    elif result.error is not None:
        raise result.error
    return 0


def _render(result: Result, config: TuneConfig, json_to: str | None) -> None:
    """Show the answer, write files, print the snippet. Raises the run's error, or RunError if nothing was timed."""
    from xbench.interrupts import interrupts_held
    from xbench.records import Comparison, of_kind
    from xbench.report.advice import can_be_planned, in_ddp, not_run
    from xbench.report.console import make_console, say
    from xbench.report.formats.terminal import show
    from xbench.report.kinds.comparison import ComparisonView
    from xbench.report.kinds.tuned import answer_sentences, ddp_lines, judged, snippet
    from xbench.report.view import Detail
    from xbench.runs.run_folder import keep as keep_record
    from xbench.runs.tune import choice_of, tuned_ddp_record, tuned_record

    console, record = make_console(), of_kind(result.record, Comparison)
    assert record is not None  # execute returns the kind of record that it was asked for
    margin = config.margin_percent / 100
    choice = choice_of(record, margin)
    answered = result.error is None and choice.best is not None
    if answered:
        title, use = record.jobs[0].workload.title, choice.winner or record.reference
        said = answer_sentences(choice, margin, title, record.fabric.label, minutes=config.minutes)
        buckets = in_ddp(use, choice.ratios, str(result.path)) if can_be_planned(record) else []
        follows = [*buckets, *not_run(record, use)]
        ComparisonView(judged(record, choice)).draw(console, Detail(), said, follows)
    else:
        show(record, console, place=str(result.path))
    console.print(f"\nrecord: {result.path}", highlight=False, soft_wrap=True)
    write_json(record, json_to)
    if result.error is not None:
        raise result.error
    if not answered:
        raise RunError("nothing could be timed beside ddp, so there is no answer", hint="the report says why")
    if choice.winner is None and choice.kind != "reference":
        say(console, "Nothing to keep: the record holds every candidate's plan.")
        return
    tuned = tuned_record(record, choice, margin, result.plans, str(result.path))
    with interrupts_held():
        place = keep_record(tuned, result.path.parent / KEPT)
        if config.keep is not None:
            write_json(tuned, config.keep)
            place = Path(config.keep)
    console.print(f"keep:   {place}\n", highlight=False, soft_wrap=True)
    text = snippet(tuned, str(place.resolve()))
    beside = tuned_ddp_record(record, choice, margin, result.plans)
    if beside is not None:
        text += ddp_lines(beside, tuned.schedule)
    if json_to == "-":
        console.print(text, highlight=False, soft_wrap=True, end="")
    else:
        click.echo(text, nl=False)


def _candidates(asked: Sequence[ModeSpec]) -> tuple[ModeSpec, ...]:
    """Return the control, ddp, and the candidates. Raises SpecError."""
    from xbench.modes import mode_info
    from xbench.schedules import parse_modes

    for mode in asked:
        if mode.paired:
            raise SpecError(f"--modes: {mode.text!r} is for two jobs, and tune is for one", hint=f"try {TUNED}")
        if not mode_info(mode.name).equivalent_to_ddp and mode.name != "compute":
            raise SpecError(f"--modes: {mode.text!r} trains another network than DDP, so it cannot be the answer",
                            hint=f"xbench compare --modes ddp,{mode.text} shows its time")  # fmt: skip
        if mode_info(mode.name).planner is None:
            raise SpecError(f"--modes: {mode.text!r} has no plan, and tune chooses among plans",
                            hint=f"xbench compare --modes ddp,{mode.text} shows its time")  # fmt: skip
        if "@" in mode.text:
            raise SpecError(f"--modes: {mode.text!r} is a second copy, and tune times each candidate once",
                            hint=f"write {mode.name}")  # fmt: skip
    candidates = [mode for mode in asked if mode.name not in ("compute", "ddp")]
    if not candidates:
        raise SpecError(
            f"--modes: {','.join(mode.text for mode in asked)!r} names no candidate beside ddp", hint=f"try {TUNED}"
        )
    return (*parse_modes("compute,ddp"), *candidates)
