"""`xbench plan`: schedules from a saved profile, for the measured link, other links, or many numbers of workers."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xbench.commands import options
from xbench.config import read_fabric
from xbench.errors import SpecError
from xbench.option_fields import choice, option, option_of, parsed
from xbench.record_files import command_line
from xbench.text import and_of, counted
from xbench.units import parse_rate, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from xbench.planning.measured import Measured
    from xbench.planning.scenario import Change, Planned
    from xbench.planning.step import Gradient
    from xbench.records import Plan
    from xbench.spec import FabricSpec


def _read_workers(text: str) -> int | tuple[int, ...]:
    """Read one number of workers, or sizes: 2..2048 doubles, 2,4,8 lists. Raises SpecError."""
    if ".." in text or "," in text:
        from xbench.planning.scale import parse_workers

        return parse_workers(text)
    try:
        return int(text)
    except ValueError:
        raise SpecError(f"--workers: {text!r} is not a whole number", hint="write 16, 2..2048 or 2,4,8") from None


def _error_band(value: float) -> float:
    if math.isfinite(value) and 0 <= value <= 0.95:
        return value
    raise SpecError(f"--error-band: {value:g} is not a share from 0 to 0.95", hint="write --error-band 0.24")


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """Options of `xbench plan`: changes to what was measured, and what to print."""

    fabric: FabricSpec | None = option(
        "--fabric",
        read=read_fabric,
        metavar="SPEC",
        help="Plan for shaped:hosts=H,rate=R[,ranks=K] in place of what was measured.",
    )
    modes: str | None = option("--modes", metavar="A,B,...", help="Modes to plan.  [default: all]")
    emit: str = choice(
        "--emit",
        "table",
        "json",
        "ddp",
        "python",
        default="table",
        help="What goes to stdout: the table, the record, or a snippet to paste.",
    )
    mode: str | None = option(
        "--mode",
        metavar="MODE",
        help="Mode of a snippet's plan.  [default: the fastest; for ddp, of ddp-tuned and auto]",
    )
    rate_bps: float | None = option(
        "--rate",
        read=lambda text: parsed("--rate", parse_rate, text),
        metavar="RATE",
        help="What if links had this rate: 10gbit.",
    )
    latency_s: float | None = option(
        "--latency",
        read=lambda text: parsed("--latency", parse_seconds, text),
        metavar="DURATION",
        help="What if a message took this long to arrive: 50us.",
    )
    compute_scale: float | None = option(
        "--compute-scale", type=float, metavar="X", help="What if computing took X times as long: 0.25."
    )
    links: tuple[Path, ...] = option(
        "--link",
        unset=(),
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="What if T(M) were that of a file of nccl-tests, NCCL Inspector, or a CSV; may be repeated.",
    )
    workers: int | tuple[int, ...] | None = option(
        "--workers",
        read=_read_workers,
        metavar="N|SIZES",
        help="What if there were N workers in a ring; 2..2048 (doubling) or 2,4,8: every mode at each size.",
    )
    topology: str | None = option(
        "--topology",
        metavar="NAME",
        help="All-reduce of SIZES: ring, tree (double binary trees), or "
        "hierarchical:gpus=G[,rate=R|,between=R][,latency=L].  [default: ring]",
    )
    error_band: float | None = option(
        "--error-band",
        type=float,
        read=_error_band,
        metavar="SHARE",
        help="Error of predictions at SIZES.  [default: the record's own worst error, else 0.24]",
    )
    job: int | None = option(
        "--job", type=int, metavar="N", help="Job to plan for, counted from 1, where a comparison has two."
    )

    def of_link(self, measured: Measured) -> dict[str, Any]:
        """Return the fields of a `Change` for `--link`; empty without it. Raises UsageError as `link_cost` does."""
        if not self.links:
            return {}
        from xbench.traces.link import link_cost

        was = measured.cost
        link = link_cost(self.links, world_size=was.world_size, backend=was.backend)
        return {"link": link, "link_name": and_of([path.name for path in self.links])}


def _planned(path: Path) -> object:
    """Read what a plan needs of a record, whichever job is asked for. Raises UsageError."""
    from xbench.planning.measured import measured
    from xbench.records import load_measured

    record = load_measured(path)
    return measured(record, str(path), 1 if len(record.profiled) > 1 else None)


@click.command(
    "plan",
    cls=options.ThemedCommand,
    short_help="Plan schedules from a saved profile, as measured or what-if; needs no torch.",
    epilog=options.examples(
        "xbench plan latest --rate 10gbit --workers 16",
        "xbench plan latest --emit ddp",
        "xbench plan latest --workers 2..2048 --topology hierarchical:gpus=8",
    ),
)
@click.argument("profile", type=options.ResultPath(_planned))
@options.takes(
    PlanConfig, "fabric", "modes", "emit", "mode", "rate_bps", "latency_s", "links", "workers", "topology",
    "compute_scale", "error_band", "job", options.json_option,
    options.csv_option("Write a CSV with one row per mode and size; with - it goes to stdout."), options.verbose_option,
)  # fmt: skip
def plan(config: PlanConfig, profile: Path, json_to: str | None, csv_to: str | None, verbose: bool) -> None:
    """Plan schedules from a saved profile, as measured or what-if; needs no torch.

    PROFILE is a record of `xbench profile` or `xbench compare`, the folder of its run, or latest. Everything printed is
    simulated from what was measured there.
    """
    _check_together(config, csv_to)
    if isinstance(config.workers, tuple):
        _scale(config, profile, config.workers, json_to, csv_to, verbose=verbose)
        return
    from xbench.planning.measured import read
    from xbench.planning.scenario import replan, to_profile, what_if
    from xbench.report.advice import fastest
    from xbench.report.console import make_console
    from xbench.report.planned import FOR_DDP, fastest_in_ddp, show_planned

    options.check_targets({"--json": json_to}, [profile])
    emit = config.emit
    if emit != "table" and json_to == "-":
        raise SpecError(f"--emit {emit} and --json - both want stdout", hint="write --json FILE")
    if emit == "python" and config.mode is not None and _plans_units(config.mode):
        click.echo(_units_lines(profile, config, config.mode, json_to), nl=False)
        return
    wanted, chosen = _snippets_mode(emit, config.mode), _modes(config.modes)
    measured = read(profile, config.job)
    change = _change(measured, config)
    _check_put_off([*(chosen or ()), *([wanted] if wanted is not None else ())], measured)
    if chosen is not None:
        needed = [wanted] if wanted is not None else FOR_DDP if emit == "ddp" else []
        chosen = list(dict.fromkeys([*chosen, *needed]))
    planned = replan(what_if(measured, change), chosen)
    wanted = wanted or (fastest_in_ddp(planned) if emit == "ddp" else fastest(planned))
    if emit == "python" and wanted is None:
        raise SpecError("only the control was planned, so there is nothing to paste", hint="leave --modes out")
    record = to_profile(planned, command_line())
    console = make_console(stderr=emit != "table" or json_to == "-")
    show_planned(planned, console, chosen=wanted, table=emit == "table", in_ddp=emit == "ddp")
    options.write_json(record, json_to)
    if emit == "json":
        options.write_json(record, options.STDOUT)
    if wanted is not None and emit == "python":
        _paste_attach(planned, wanted, json_to, console)
    elif wanted is not None and emit == "ddp":
        _paste_ddp(planned, wanted, console)


def _paste_attach(planned: Planned, mode: str, json_to: str | None, console: Console) -> None:
    """Write the `xbench.attach` snippet to stdout, and notes on it to the console."""
    from xbench.report.snippets import attach_snippet, is_plain_ddp

    path = str(Path(json_to).resolve()) if json_to else None
    measured = planned.scenario.measured
    plan, spec = planned.plans[mode], measured.record.spec
    code = attach_snippet(plan, path, tuned=spec.tunes_ranks, workload=measured.workload.spec, device=spec.device)
    click.echo(code, nl=False)
    if is_plain_ddp(planned.plans[mode]):
        _say(console, f"{mode} took DistributedDataParallel as it comes.")
        return
    if json_to is None:
        _say(console, "The buckets stand in the snippet; with --json FILE it names that file instead.")
    missing = measured.workload.tensors - len(planned.scenario.step.gradients)
    if missing > 0:
        told = f"{missing} parameters had no gradient when profiled and are in no bucket: give each one its own."
        _say(console, told)


def _plans_units(text: str) -> bool:
    """True if a mode's units are planned, so that its lines are those of a comparison."""
    from xbench.modes import mode_info
    from xbench.schedules import parse_modes

    return all(mode_info(mode.name).plans_units for mode in parse_modes(text))


def _units_lines(profile: Path, config: PlanConfig, mode: str, json_to: str | None) -> str:
    """Return the lines of torch that wrap a mode's units as the comparison in `profile` did.

    Raises SpecError for a record without units, and for options that would change nothing.
    """
    from xbench.records import Comparison, load, of_kind
    from xbench.report import advice

    default = PlanConfig(emit=config.emit, mode=config.mode)
    names = [field.name for field in fields(config) if getattr(config, field.name) != getattr(default, field.name)]
    given = [option_of(PlanConfig, name).flags[0] for name in names] + (["--json"] if json_to is not None else [])
    if given:
        raise SpecError(
            f"{and_of(given)}: the units of {mode} are those that a comparison wrapped",
            hint=f"leave {and_of(given)} out, or compare under those conditions",
        )
    record = of_kind(load(profile), Comparison)
    result = record.modes.get(mode) if record is not None else None
    if record is None or result is None or not result.units:
        raise SpecError(
            f"--mode {mode}: {str(profile)!r} holds no units of it",
            hint=f"xbench compare WORKLOAD --modes ddp,{mode} plans them",
        )
    return advice.units_lines(record, result)


def _paste_ddp(planned: Planned, mode: str, console: Console) -> None:
    """Write the DDP snippet to stdout, and to the console whether torch forms these buckets from it."""
    from xbench.planning.plans import bucket_caps_mib
    from xbench.report.snippets import PLAIN_DDP, ddp_snippet, is_plain_ddp

    if is_plain_ddp(planned.plans[mode]):
        click.echo(PLAIN_DDP, nl=False)
        _say(console, f"{mode} took DistributedDataParallel as it comes.")
        return
    gradients, plan = planned.scenario.step.gradients, planned.in_ddp(mode)
    caps_mib = bucket_caps_mib(plan, {gradient.name: gradient.dtype for gradient in gradients})
    tuned = planned.scenario.measured.record.spec.tunes_ranks
    click.echo(ddp_snippet(plan, caps_mib, tuned=tuned), nl=False)
    _say(console, _verified(gradients, plan, caps_mib))


def _verified(gradients: Sequence[Gradient], plan: Plan, caps_mib: Sequence[float]) -> str:
    """Say in one sentence which buckets the installed torch forms from the caps."""
    try:
        import torch

        from xbench.schedules.ddp import formed, supported
    except (ImportError, OSError) as error:
        return f"Not verified that DDP forms these buckets: torch cannot be imported here ({error})."
    release = f"torch {torch.__version__}"
    if not supported():
        return f"Not verified: the DDP of {release} has no bucket_cap_mb_list, which came after torch 2.11."
    buckets = formed(gradients, caps_mib)
    if sorted(map(sorted, buckets)) == sorted(map(sorted, plan.buckets)):
        return f"Verified: DDP of {release} forms exactly the {counted(len(buckets), 'bucket')} of the plan."
    return (
        f"Verified: DDP of {release} forms {counted(len(buckets), 'bucket')}, not these {len(plan.buckets)}: each "
        "dtype walks the list by itself, and one list cannot describe several. --emit python gives exactly these."
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
            raise SpecError(f"--modes: {name!r} is not planned from a record", hint=f"these are: {', '.join(known)}")
    return found


def _check_put_off(modes: Sequence[str], measured: Measured) -> None:
    """Raise SpecError for a mode that puts updates off, where the measured step waits for all gradients first."""
    from xbench.modes import mode_info

    flag = measured.workload.spec.updates_together
    late = next((mode for mode in modes if mode_info(mode).may_put_off), None)
    if flag is not None and late is not None:
        raise SpecError(
            f"{late!r} updates each layer in the next forward pass, and the measured step has {flag}, which needs all "
            "gradients before the first update",
            hint="leave the mode out, or profile without the option",
        )


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
        for flag, value in (("--rate", config.rate_bps), ("--workers", config.workers), ("--link", config.links)):
            if value:
                raise SpecError(f"--fabric and {flag} exclude each other", hint="--fabric says rate and workers")
        there = change_to(config.fabric, measured.fabric)
    workers = config.workers if isinstance(config.workers, int) else there.workers
    return Change(
        rate_bps=config.rate_bps if config.rate_bps is not None else there.rate_bps,
        latency_s=config.latency_s,
        workers=workers,
        compute_scale=config.compute_scale,
        ranks_per_host=there.ranks_per_host,
        **config.of_link(measured),
    )


# --- many numbers of workers --------------------------------------------------------------------------------------


def _check_together(config: PlanConfig, csv_to: str | None) -> None:
    """Raise SpecError for an option of one plan beside several sizes, or the other way round."""
    if isinstance(config.workers, tuple):
        of_one = {
            "--fabric": config.fabric is not None,
            "--emit": config.emit != "table",
            "--mode": config.mode is not None,
        }
        for flag, given in of_one.items():
            if given:
                raise SpecError(f"{flag} is of one plan, and --workers asks for several sizes", hint="leave one out")
        return
    of_sizes = {"--topology": config.topology, "--error-band": config.error_band, "--csv": csv_to}
    for flag, value in of_sizes.items():
        if value is not None:
            raise SpecError(f"{flag} goes with several numbers of workers", hint="add --workers 2..2048")


def _scale(
    config: PlanConfig,
    profile: Path,
    workers: tuple[int, ...],
    json_to: str | None,
    csv_to: str | None,
    *,
    verbose: bool,
) -> None:
    """Predict every schedule at each number of workers, and show and write the record."""
    from xbench.planning.measured import read
    from xbench.planning.scale import Request, parse_scaled_modes, to_record
    from xbench.planning.scenario import Change, what_if
    from xbench.planning.topology import parse_topology

    options.check_targets({"--json": json_to, "--csv": csv_to}, [profile])
    topology = parse_topology(config.topology or "ring")
    request = Request(topology, workers, parse_scaled_modes(config.modes), config.error_band)
    measured = read(profile, config.job)
    change = Change(
        rate_bps=config.rate_bps,
        latency_s=config.latency_s,
        compute_scale=config.compute_scale,
        **config.of_link(measured),
    )
    record = to_record(what_if(measured, change), request, command_line())
    options.show_result(record, json_to, csv_to, verbose=verbose)
    options.write_json(record, json_to)
    options.write_csv(record, csv_to)
