"""`xbench plan`: find the best schedule from a saved profile, for the measured link or for other links and workers."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from xbench.commands.completing import complete_result
from xbench.commands.options import check_json, json_option, takes, write_json
from xbench.commands.results import ResultPath
from xbench.commands.themes import ThemedCommand, examples
from xbench.errors import SpecError
from xbench.plan_config import PlanConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from xbench.planning.measured import Measured
    from xbench.planning.scenario import Change, Planned
    from xbench.planning.step import Gradient
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
@takes(
    PlanConfig,
    "fabric",
    "modes",
    "emit",
    "mode",
    "rate_bps",
    "latency_s",
    "workers",
    "compute_scale",
    "overlap",
    "job",
    json_option,
)
def plan(config: PlanConfig, profile: Path, json_to: str | None) -> None:
    """Plan schedules from a saved profile, as measured or what-if; needs no torch.

    PROFILE is a record of `xbench profile` or `xbench compare`, the folder of its run, or latest. Everything printed is
    simulated from what was measured there; what a what-if changes is said beside it.
    """
    from xbench.planning.measured import read
    from xbench.planning.scenario import replan, to_profile, what_if
    from xbench.report.advice import fastest
    from xbench.report.console import make_console
    from xbench.report.planned import FOR_DDP, fastest_in_ddp, show_planned

    check_json(json_to)
    emit = config.emit
    if emit != "table" and json_to == "-":
        raise SpecError(f"--emit {emit} and --json - both want stdout", hint="write --json FILE")
    wanted, chosen = _snippets_mode(emit, config.mode), _modes(config.modes)
    measured = read(profile, config.job)
    change = _change(measured, config)
    if chosen is not None:
        needed = [wanted] if wanted is not None else FOR_DDP if emit == "ddp" else []
        chosen = list(dict.fromkeys([*chosen, *needed]))
    planned = replan(what_if(measured, change), chosen, overlap=config.overlap)
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
    """Write the `xbench.attach` snippet to stdout, and notes on it to the console."""
    from xbench.report.snippets import attach_snippet

    path = str(Path(json_to).resolve()) if json_to else None
    measured = planned.scenario.measured
    tuned = measured.record.spec.tunes_ranks
    click.echo(attach_snippet(planned.plans[mode], path, tuned=tuned), nl=False)
    if json_to is None:
        _say(console, "The buckets stand in the snippet; with --json FILE it names that file instead.")
    missing = measured.workload.tensors - len(planned.scenario.step.gradients)
    if missing > 0:
        _say(
            console, f"{missing} parameters had no gradient when profiled and are in no bucket: give each one its own."
        )


def _paste_ddp(planned: Planned, mode: str, console: Console) -> None:
    """Write the DDP snippet to stdout, and to the console whether torch forms these buckets from it."""
    from xbench.planning.plans import bucket_caps_mib
    from xbench.report.snippets import ddp_snippet

    gradients, plan = planned.scenario.step.gradients, planned.in_ddp(mode)
    caps_mib = bucket_caps_mib(plan, {gradient.name: gradient.dtype for gradient in gradients})
    measured = planned.scenario.measured
    tuned = measured.record.spec.tunes_ranks
    click.echo(ddp_snippet(plan, caps_mib, tuned=tuned), nl=False)
    _say(console, _verified(gradients, plan, caps_mib))


def _verified(gradients: Sequence[Gradient], plan: Plan, caps_mib: Sequence[float]) -> str:
    """Say in one sentence which buckets the installed torch forms from the caps."""
    try:
        import torch

        from xbench.schedules.ddp_tuned import formed, supported
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
    """Return the modes to plan, or None for all. Raises SpecError."""
    from xbench.modes import planned_modes
    from xbench.schedules import parse_modes

    if text is None:
        return None
    found = [mode.text for mode in parse_modes(text)]
    known = planned_modes()
    for name in found:
        if name not in known:
            raise SpecError(f"--modes: {name!r} is not one job's schedule", hint=f"it plans {', '.join(known)}")
    return found


def _snippets_mode(emit: str, mode: str | None) -> str | None:
    """Return the mode whose plan the snippet holds, or None if no mode is named. Raises SpecError."""
    from xbench.modes import mode_info

    if mode is None:
        return None
    if emit not in ("ddp", "python"):
        raise SpecError("--mode chooses a snippet's plan, and no snippet is asked for", hint="add --emit python")
    names = _modes(mode) or []
    if len(names) != 1:
        raise SpecError(f"--mode {mode}: a snippet holds one plan", hint=f"write --mode {names[0]}")
    name = names[0]
    info = mode_info(name)
    if not info.trains or (emit == "ddp" and (name == "ddp" or info.puts_off)):
        why = "is what DistributedDataParallel does by itself" if info.trains else "trains no common network"
        if info.puts_off:
            why = "waits in the next forward pass, which DistributedDataParallel does not"
        raise SpecError(f"--mode {name}: it {why}, so there is nothing to paste", hint="leave --mode out")
    return name


def _change(measured: Measured, config: PlanConfig) -> Change:
    """Return the changes to the measured conditions that the options ask for. Raises SpecError."""
    from xbench.planning.scenario import Change, change_to

    there = Change()
    if config.fabric is not None:
        for option, value in (("--rate", config.rate_bps), ("--workers", config.workers)):
            if value is not None:
                raise SpecError(f"--fabric and {option} exclude each other", hint="--fabric says rate and workers")
        there = change_to(config.fabric, measured.fabric)
    return Change(
        rate_bps=config.rate_bps if config.rate_bps is not None else there.rate_bps,
        latency_s=config.latency_s,
        workers=config.workers if config.workers is not None else there.workers,
        compute_scale=config.compute_scale,
        ranks_per_host=there.ranks_per_host,
    )
