"""`xbench cluster`: many jobs on one cluster, simulated under several policies or run for real."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from xbench.commands.completing import complete_policies, complete_policy, complete_workload
from xbench.commands.options import (
    check_json,
    check_targets,
    csv_option,
    echo_utf8,
    json_option,
    show_result,
    show_run,
    write_csv,
    write_json,
)
from xbench.config import RUNS
from xbench.errors import RunError, SpecError
from xbench.option_fields import parsed
from xbench.output_files import check_folder
from xbench.record_files import command_line
from xbench.text import counted
from xbench.units import parse_bytes, parse_seconds

MAX_GPUS = 1_000_000
MAX_SEEDS = 1000
MAX_WORKERS = 1024
EXAMPLE = "generated:jobs=200,load=0.9,gpus=32"
DEFAULT_SEEDS = 6
OF_A_RUN = ("policy", "engine", "slots", "folder", "restart_text", "device", "address")
"""Options that are fixed when a run begins; `--resume` refuses them."""
RESTART_COST_S = "4.13"
"""Median [s] of results/cluster-restart.json: resnet18 between one and two CPU cores. Most of it is importing torch."""


@click.group("cluster", short_help="Many jobs on one cluster: compare policies that share its GPUs; needs no torch.")
def cluster() -> None:
    """Many jobs on one cluster: compare policies that share its GPUs; needs no torch.

    What compare shows is simulated: jobs come from a trace, a policy decides who holds how many GPUs, and a restart
    costs what you say, or what restart measured. `xbench list` has the policies and traces. run
    trains real jobs under a policy.
    """


@cluster.command("compare", short_help="Simulate a trace of jobs under several policies.")
@click.option("--trace", "trace_text", default=EXAMPLE, show_default=True, metavar="TRACE",
              help="Jobs: itp:PATH, philly:PATH, pollux:FOLDER, alibaba:PATH, FILE.csv, or generated:...")  # fmt: skip
@click.option("--policies", "policy_text", default="fifo-backfill,sjf,srtf,las", show_default=True,
              metavar="A,B,...", shell_complete=complete_policies, help="The first is the reference.")  # fmt: skip
@click.option(
    "--gpus", default=32, show_default=True, type=click.IntRange(1, MAX_GPUS), metavar="N", help="The cluster's."
)
@click.option("--restart-cost", "cost_text", default=RESTART_COST_S, show_default=True, metavar="S,S,...",
              help="Seconds that a job loses when it is moved, or restart's --json file. The default is measured, on "
              "two CPU cores.")  # fmt: skip
@click.option("--gpus-per-host", type=click.IntRange(1, MAX_GPUS), metavar="N",
              help="GPUs a host; a slower link joins hosts.  [default: all GPUs are on one host]")  # fmt: skip
@click.option("--placement", "placement_text", metavar="A,B",
              help="Where jobs go: packed (on few hosts), spread (over many), or both.  [default: packed]")  # fmt: skip
@click.option("--across-hosts", type=float, metavar="X",
              help="Speed left on more hosts than needed, 0.8 is 80 %; for a trace that does not know.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(1, MAX_SEEDS), metavar="N",
              help="Traces to generate; 6 and more give intervals.  [default: 6, or the one of seed=]")  # fmt: skip
@click.option("--window", "window_text", metavar="A-B",
              help="Jobs by arrival that count in the means; all are simulated.  [default: all count]")  # fmt: skip
@csv_option("Write a CSV with one row a simulation; with - it goes to stdout.")
@json_option
def compare_command(
    trace_text: str,
    policy_text: str,
    gpus: int,
    cost_text: str,
    gpus_per_host: int | None,
    placement_text: str | None,
    across_hosts: float | None,
    seeds: int | None,
    window_text: str | None,
    csv_to: str | None,
    json_to: str | None,
) -> None:
    """Simulate a trace of jobs under several policies, and say which completes jobs soonest.

    Jobs of a file are what they are; a generated trace can be drawn again from several seeds, and every policy meets
    the same jobs in each.
    """
    from xbench.cluster.compare import ComparisonRequest, compare, parse_costs
    from xbench.cluster.metrics import parse_window
    from xbench.cluster.placement import parse_placements
    from xbench.cluster.policies import parse_policies
    from xbench.cluster.traces import Trace, load_trace
    from xbench.report.console import make_console

    check_targets({"--json": json_to, "--csv": csv_to})
    policies = parsed("--policies", parse_policies, policy_text)
    costs = parsed("--restart-cost", parse_costs, cost_text)
    for option, value in (("--placement", placement_text), ("--across-hosts", across_hosts)):
        if value is not None and gpus_per_host is None:
            raise SpecError(f"{option} is for a cluster of several hosts", hint="say how large: --gpus-per-host 8")
    placements = parsed("--placement", parse_placements, placement_text or "packed")
    numbers = _seeds(trace_text, seeds)
    window = None if window_text is None else parsed("--window", parse_window, window_text)

    def trace(seed: int | None) -> Trace:
        part = "" if seed is None else f"{',' if ':' in trace_text else ':'}seed={seed}"
        return parsed("--trace", load_trace, trace_text + part)

    console = make_console()
    asked = ComparisonRequest(
        trace_text, trace, numbers, policies, gpus, costs, gpus_per_host, placements, across_hosts, window
    )
    record = compare(asked, command_line(), lambda said: console.print(said, highlight=False, markup=False))
    console.print()
    show_result(record, json_to, csv_to)
    write_json(record, json_to)
    write_csv(record, csv_to)


def _seeds(trace: str, seeds: int | None) -> tuple[int | None, ...]:
    """Return the seeds to draw a trace from; None for a trace that has its own. Raises SpecError."""
    drawn, own = trace.partition(":")[0].strip() == "generated", "seed=" in trace
    if seeds is not None and not drawn:
        raise SpecError(
            f"--seeds: {trace!r} is what it is, and has no seeds", hint=f"leave it out, or try --trace {EXAMPLE}"
        )
    if seeds is not None and own:
        raise SpecError("--seeds and seed= in --trace exclude each other", hint="leave one of them out")
    return tuple(range(seeds or DEFAULT_SEEDS)) if drawn and not own else (None,)


@cluster.command("run", short_help="Run real jobs on this machine or a Ray cluster, under a policy.")
@click.argument("jobs", required=False, type=click.Path(path_type=Path), metavar="[JOBS.toml]")
@click.option("--policy", default="fifo", show_default=True, shell_complete=complete_policy, metavar="POLICY",
              help="A policy that xbench list policies lists.")  # fmt: skip
@click.option("--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True,
              help="What starts workers: this machine, or Ray (an optional extra).")  # fmt: skip
@click.option("--slots", type=click.IntRange(1, 100_000), metavar="N",
              help="Workers at a time.  [default: the file's, else all cores or GPUs]")  # fmt: skip
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Device that a slot is: a core or a GPU.",
)
@click.option("--address", metavar="HOST:PORT", help="Address of a Ray cluster.  [default: one is started here]")
@click.option("--retries", type=click.IntRange(0, 1000), default=3, show_default=True, metavar="N",
              help="How often a job that crashes is started again; with --resume, given-up jobs too.")  # fmt: skip
@click.option("--restart-cost", "restart_text", default="10s", show_default=True, metavar="DURATION",
              help="What the policy believes that a start costs; xbench cluster restart measures it.")  # fmt: skip
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
              help="Where checkpoints and the ledger are kept.  [default: a new one in results/runs]")  # fmt: skip
@click.option("--resume", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
              help="Go on with the run of this folder, whatever ended it.")  # fmt: skip
@json_option
@click.pass_context
def run_command(
    context: click.Context,
    jobs: Path | None,
    policy: str,
    engine: str,
    slots: int | None,
    device: str,
    address: str | None,
    retries: int,
    restart_text: str,
    folder: Path | None,
    resume: Path | None,
    json_to: str | None,
) -> None:
    """Run real jobs on this machine or a Ray cluster, under a policy.

    Each job trains with a fixed number of workers at a time: to give it another number it keeps a checkpoint, stops,
    and starts anew. In the end each job's completion time stands beside that of the simulator. A run that was
    interrupted, or whose controller was killed, goes on with --resume FOLDER, and loses no step that was kept.
    """
    from xbench.cluster.live import run as live
    from xbench.cluster.policies import parse_policy
    from xbench.report.console import make_console

    check_json(json_to)
    console = make_console()

    def say(told: str) -> None:
        console.print(told, highlight=False, markup=False, soft_wrap=True)

    if resume is not None:
        given = [key for key in OF_A_RUN if context.get_parameter_source(key) is ParameterSource.COMMANDLINE]
        if given or jobs is not None:
            opts = {parameter.name: parameter.opts[0] for parameter in context.command.params}
            extra = "JOBS.toml" if jobs is not None else opts[given[0]]
            raise SpecError(f"--resume goes on as the run began, and {extra} would change it", hint="leave it out")
        asked = context.get_parameter_source("retries") is ParameterSource.COMMANDLINE
        record = live.resume(resume, say, retries if asked else None)
    else:
        if jobs is None:
            hint = "name a TOML file with [[job]] for each: name, workload, steps and batch_size; or --resume FOLDER"
            raise SpecError("no jobs are named", hint=hint)
        parsed("--policy", parse_policy, policy)
        check_folder(folder if folder is not None else RUNS, "--folder", "name another --folder")
        record = live.begin(
            live.LiveRequest(
                jobs=jobs,
                policy=policy,
                engine="ray" if engine == "ray" else "local",
                folder=folder,
                command=command_line(),
                slots=slots,
                retries=retries,
                restart_s=parsed("--restart-cost", parse_seconds, restart_text),
                device="cuda" if device == "cuda" else "cpu",
                address=address,
            ),
            say,
        )
    console.print()
    show_result(record, json_to)
    write_json(record, json_to)
    failed = [job.name for job in record.jobs if job.status == "failed"]
    if failed:
        raise RunError(f"{len(failed)} of {counted(len(record.jobs), 'job')} failed: {', '.join(failed)}")


@cluster.command("restart", short_help="Measure what stopping and restarting a real job costs.")
@click.argument("workload", shell_complete=complete_workload)
@click.option("--from", "start", default=1, show_default=True, type=click.IntRange(1, MAX_WORKERS), metavar="W",
              help="Workers to begin with.")  # fmt: skip
@click.option("--to", default=2, show_default=True, type=click.IntRange(1, MAX_WORKERS), metavar="W",
              help="Workers after a restart; the next one goes back.")  # fmt: skip
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1, 1000), metavar="N",
              help="Restarts there and back.")  # fmt: skip
@click.option("--batch-size", type=click.IntRange(1, 1_000_000), metavar="B",
              help="Samples of a step over all workers.  [default: the workload's own, a worker]")  # fmt: skip
@click.option("--steps", default=20, show_default=True, type=click.IntRange(2, 1_000_000), metavar="S",
              help="Steps with each number of workers, before the stop is asked for.")  # fmt: skip
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0, 2**31 - 1), help="Seed of weights and data."
)
@click.option("--device", default="auto", show_default=True, type=click.Choice(["auto", "cpu", "cuda"]),
              help="A worker takes a core, or a GPU.")  # fmt: skip
@json_option
def restart_command(
    workload: str,
    start: int,
    to: int,
    repeats: int,
    batch_size: int | None,
    steps: int,
    seed: int,
    device: str,
    json_to: str | None,
) -> int:
    """Stop and restart a real training job with another number of workers, and measure what that costs.

    WORKLOAD is as for `xbench profile`. Checkpoint, tear-down, launch and first step are timed, and the loss curve is
    held to that of a run without a stop; exit code 3 says that it does not go on.
    """
    from xbench.cluster.live.restart import RestartRequest, measure
    from xbench.report.console import make_console

    check_json(json_to)
    console = make_console()
    request = RestartRequest(workload, start, to, repeats, batch_size, steps, seed, device)
    record, path, error = measure(request, lambda said: console.print(said, highlight=False, markup=False))
    show_run(console, record, path, json_to)
    if error is not None:
        raise error
    return 0 if record.check is not None and record.check.held else 3


@cluster.command("fit", short_help="Fit a job's speed to runs of it, or its loss curve to losses.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--model-bytes", "bytes_text", metavar="SIZE", help="Size of the gradients, such as 97.5MiB; for runs.")
@click.option(
    "--target", type=float, metavar="LOSS", help="Loss to reach: the fit says after how many steps; for losses."
)
def fit_command(file: Path, bytes_text: str | None, target: float | None) -> None:
    """Fit a job's speed on any number of GPUs to a few runs, or its loss curve to losses; says how well that fits.

    FILE is a CSV with columns gpus,batch,step_s (the step of a whole batch, shared by so many GPUs) or step,loss. What
    is printed can be pasted into a jobs.toml or a CSV of jobs.
    """
    from xbench.cluster.fitting import fitted_lines

    model_bytes = None if bytes_text is None else parsed("--model-bytes", parse_bytes, bytes_text)
    for line in fitted_lines(file, model_bytes, target):
        echo_utf8(line + "\n")


@cluster.group("traces", short_help="Fetch a public trace.")
def traces_group() -> None:
    """Fetch a public trace."""


@traces_group.command("fetch")
@click.argument("name")
@click.option("--folder", type=click.Path(path_type=Path), default=Path("traces"), show_default=True, metavar="FOLDER",
              help="Where it is kept, in a folder of its name.")  # fmt: skip
def fetch_command(name: str, folder: Path) -> None:
    """Download a public trace, and check that it is the one it should be."""
    from xbench.cluster.traces.fetch import PUBLIC, fetch

    for path in fetch(name, folder):
        click.echo(f"{path}", err=True)
    click.echo(f"--trace {PUBLIC[name].spec(folder)}")
