"""`xbench plan`: from a saved profile to the best schedule, here or for links and workers that one does not have."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from xbench.commands.completing import complete_fabric, complete_mode, complete_modes, complete_result
from xbench.commands.options import check_json, json_option, overlap_option, parsed, write_json
from xbench.commands.results import ResultPath
from xbench.commands.themes import ThemedCommand, examples
from xbench.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from xbench.planning.gradients import Gradient
    from xbench.planning.replan import Planned
    from xbench.planning.what_if import Change, Measured
    from xbench.records import Plan


@click.command(
    "plan",
    cls=ThemedCommand,
    short_help="Plan schedules from a saved profile, as measured or what-if; needs no torch.",
    epilog=examples(
        "xbench plan latest",
        "xbench plan latest --rate 10gbit --workers 16",
        "xbench plan latest --emit ddp",
    ),
)
@click.argument("profile", type=ResultPath(), shell_complete=complete_result)
@click.option(
    "--fabric",
    metavar="SPEC",
    shell_complete=complete_fabric,
    help="Plan for shaped:hosts=H,rate=R[,ranks=K] in place of what was measured.",
)
@click.option("--modes", metavar="A,B,...", shell_complete=complete_modes, help="Which modes to plan.  [default: all]")
@click.option("--emit", type=click.Choice(["table", "json", "ddp", "python"]), default="table", show_default=True,
              help="What goes to stdout: the table, the record, or a snippet to paste.")  # fmt: skip
@click.option("--mode", metavar="MODE", shell_complete=complete_mode,
              help="Mode of a snippet's plan.  [default: the fastest; for ddp, of ddp-tuned and auto]")  # fmt: skip
@click.option("--rate", metavar="RATE", help="What if links had this rate: 10gbit.")
@click.option("--latency", metavar="DURATION", help="What if a message took this long to arrive: 50us.")
@click.option("--workers", type=int, metavar="N", help="What if there were N workers, in a ring.")
@click.option("--compute-scale", type=float, metavar="X", help="What if computing took X times as long: 0.25.")
@overlap_option
@click.option("--job", type=int, metavar="N", help="Which job of a comparison of two, counted from 1.")
@json_option
def plan(
    profile: Path,
    fabric: str | None,
    modes: str | None,
    emit: str,
    mode: str | None,
    rate: str | None,
    latency: str | None,
    workers: int | None,
    compute_scale: float | None,
    overlap: str,
    job: int | None,
    json_to: str | None,
) -> None:
    """Plan schedules from a saved profile, as measured or what-if; needs no torch.

    PROFILE is a record of `xbench profile` or `xbench compare`, the folder of its run, or latest. Everything printed is
    simulated from what was measured there; what a what-if changes is said beside it.
    """
    from xbench.planning.replan import replan, to_profile
    from xbench.planning.what_if import read, what_if
    from xbench.report.advice import fastest
    from xbench.report.drawing import make_console
    from xbench.report.planned import FOR_DDP, fastest_in_ddp, show_planned

    check_json(json_to)
    if emit != "table" and json_to == "-":
        raise SpecError(f"--emit {emit} and --json - both want stdout", hint="write --json FILE")
    wanted, chosen = _snippets_mode(emit, mode), _modes(modes)
    measured = read(profile, job)
    change = _change(measured, fabric, rate, latency, workers, compute_scale)
    if chosen is not None:
        needed = [wanted] if wanted is not None else FOR_DDP if emit == "ddp" else []
        chosen = list(dict.fromkeys([*chosen, *needed]))
    planned = replan(what_if(measured, change), chosen, overlap=overlap)  # type: ignore[arg-type]
    wanted = wanted or (fastest_in_ddp(planned) if emit == "ddp" else fastest(planned))
    if emit == "python" and wanted is None:
        raise SpecError("only the control was planned, so there is nothing to paste", hint="leave --modes out")
    record = to_profile(planned, shlex.join(["xbench", *sys.argv[1:]]))
    console = make_console(stderr=emit != "table" or json_to == "-")
    show_planned(planned, console, chosen=wanted, table=emit == "table", in_ddp=emit == "ddp")
    write_json(record, "-" if emit == "json" else json_to)
    if wanted is not None and emit == "python":
        _paste_attach(planned, wanted, json_to, console)
    elif wanted is not None and emit == "ddp":
        _paste_ddp(planned, wanted, console)


def _paste_attach(planned: Planned, mode: str, json_to: str | None, console: Console) -> None:
    """`xbench.attach` on stdout, and on the console what to know before pasting it."""
    from xbench.report.snippets import attach_snippet

    path = str(Path(json_to).resolve()) if json_to else None
    measured = planned.scenario.measured
    tuned = measured.record.spec.tunes_ranks
    click.echo(attach_snippet(planned.plans[mode], path, fabric=measured.fabric, tuned=tuned), nl=False)
    if json_to is None:
        _say(console, "The buckets stand in the snippet; with --json FILE it names that file instead.")
    missing = measured.workload.tensors - len(planned.scenario.step.gradients)
    if missing > 0:
        _say(
            console, f"{missing} parameters had no gradient when profiled and are in no bucket: give each one its own."
        )


def _paste_ddp(planned: Planned, mode: str, console: Console) -> None:
    """DDP's argument on stdout, and on the console whether torch really forms these buckets from it."""
    from xbench.planning.plans import bucket_caps_mib
    from xbench.report.snippets import ddp_snippet

    gradients, plan = planned.scenario.step.gradients, planned.in_ddp(mode)
    caps_mib = bucket_caps_mib(plan, {gradient.name: gradient.dtype for gradient in gradients})
    measured = planned.scenario.measured
    tuned = measured.record.spec.tunes_ranks
    click.echo(ddp_snippet(plan, caps_mib, fabric=measured.fabric, tuned=tuned), nl=False)
    _say(console, _verified(gradients, plan, caps_mib))


def _verified(gradients: Sequence[Gradient], plan: Plan, caps_mib: Sequence[float]) -> str:
    """What torch, where it is at hand, makes of the caps: one sentence."""
    try:
        import torch

        from xbench.schedules.ddp_buckets import formed
        from xbench.schedules.ddp_tuned import supported
    except (ImportError, OSError) as error:
        return f"Not verified that DDP forms these buckets: torch cannot be imported here ({error})."
    release = f"torch {torch.__version__}"
    if not supported():
        return f"Not verified: the DDP of {release} has no bucket_cap_mb_list, which came after torch 2.11."
    buckets = formed(gradients, caps_mib)
    if sorted(map(sorted, buckets)) == sorted(map(sorted, plan.buckets)):
        return f"Verified: DDP of {release} forms exactly these {len(buckets)} buckets of these gradients."
    return (
        f"Verified: DDP of {release} forms {len(buckets)} buckets, not these {len(plan.buckets)}: each dtype walks the "
        "list by itself, and one list cannot describe several. --emit python gives exactly these."
    )


def _say(console: Console, sentence: str) -> None:
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)


def _modes(text: str | None) -> list[str] | None:
    """The modes to plan; None for all. Raises SpecError."""
    from xbench.planning import NEXT_FORWARD, PLANNED_MODES
    from xbench.schedules import parse_modes

    if text is None:
        return None
    found = [mode.text for mode in parse_modes(text)]
    known = (*PLANNED_MODES, *NEXT_FORWARD)
    for name in found:
        if name not in known:
            raise SpecError(f"--modes: {name!r} is not one job's schedule", hint=f"it plans {', '.join(known)}")
    return found


def _snippets_mode(emit: str, mode: str | None) -> str | None:
    """The mode whose plan a snippet is to hold; None: the fastest, or there is none. Raises SpecError."""
    from xbench.planning import NEXT_FORWARD

    if mode is None:
        return None
    if emit not in ("ddp", "python"):
        raise SpecError("--mode chooses a snippet's plan, and no snippet is asked for", hint="add --emit python")
    names = _modes(mode) or []
    if len(names) != 1:
        raise SpecError(f"--mode {mode}: a snippet holds one plan", hint=f"write --mode {names[0]}")
    name = names[0]
    if name == "compute" or (emit == "ddp" and name in ("ddp", *NEXT_FORWARD)):
        why = "trains no common network" if name == "compute" else "is what DistributedDataParallel does by itself"
        if name in NEXT_FORWARD:
            why = "waits in the next forward pass, which DistributedDataParallel does not"
        raise SpecError(f"--mode {name}: it {why}, so there is nothing to paste", hint="leave --mode out")
    return name


def _change(
    measured: Measured,
    fabric: str | None,
    rate: str | None,
    latency: str | None,
    workers: int | None,
    compute_scale: float | None,
) -> Change:
    """What is asked for in place of what was measured. Raises SpecError."""
    from xbench.fabrics import parse_fabric
    from xbench.planning.what_if import Change, change_to
    from xbench.units import parse_rate, parse_seconds

    there = Change()
    if fabric is not None:
        for option, value in (("--rate", rate), ("--workers", workers)):
            if value is not None:
                raise SpecError(f"--fabric and {option} exclude each other", hint="--fabric says rate and workers")
        there = change_to(parse_fabric(fabric), measured.fabric)
    return Change(
        rate_bps=parsed("--rate", parse_rate, rate) if rate is not None else there.rate_bps,
        latency_s=parsed("--latency", parse_seconds, latency) if latency is not None else None,
        workers=workers if workers is not None else there.workers,
        compute_scale=compute_scale,
        ranks_per_host=there.ranks_per_host,
    )
