"""`xbench cluster`: many jobs on one cluster, simulated under several policies or run for real."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
from click.core import ParameterSource

from xbench.commands import options
from xbench.errors import RunError, SpecError
from xbench.option_fields import choice, option, parsed, whole
from xbench.output_files import check_folder
from xbench.record_files import command_line, now, results_folder
from xbench.text import counted
from xbench.units import parse_seconds

MAX_GPUS = 1_000_000
EXAMPLE = "generated:jobs=200,load=0.9,gpus=32"
DEFAULT_SEEDS = 6
OF_A_RUN = ("policy", "restarts", "engine", "slots", "folder", "restart_s", "device", "address")
"""Options that are fixed when a run begins; `--resume` refuses them."""
RESTART_COST_S = "4.25"
"""Mean [s] of results/cluster-restarts.json: resnet18 between one and two CPU cores. Most of it is importing torch."""


@click.group("cluster", short_help="Many jobs on one cluster: compare policies that share its GPUs; needs no torch.")
def cluster() -> None:
    """Many jobs on one cluster: compare policies that share its GPUs; needs no torch.

    What compare shows is simulated: jobs come from a trace, a policy decides who holds how many GPUs, and a restart
    costs what you say, or what a run measured. `xbench list` has the policies and traces. run trains real jobs under a
    policy.
    """


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """Options of `xbench cluster compare`."""

    trace: str = option("--trace", default=EXAMPLE, metavar="TRACE",
                        help="Jobs: itp, philly or pollux[:PATH], FILE.csv, or generated:...")  # fmt: skip
    policies: str = option("--policies", default="fifo-backfill,sjf,srtf,las", metavar="A,B,...",
                           help="The first is the reference.")  # fmt: skip
    gpus: int = whole("--gpus", 1, MAX_GPUS, default=32, metavar="N", help="The cluster's.")
    costs: str = option("--restart-cost", default=RESTART_COST_S, metavar="S,S,...",
                        help="Seconds that a job loses when it is moved, or the --json file of a run. The default is "
                        "measured, on two CPU cores.")  # fmt: skip
    gpus_per_host: int | None = whole("--gpus-per-host", 1, MAX_GPUS, metavar="N",
                                      help="GPUs a host; a slower link joins hosts.  [default: all GPUs are on one "
                                      "host]")  # fmt: skip
    placement: str | None = option("--placement", metavar="A,B",
                                   help="Where jobs go: packed (on few hosts), spread (over many), or both.  [default: "
                                   "packed]")  # fmt: skip
    across_hosts: float | None = option("--across-hosts", type=float, metavar="X",
                                        help="Speed left on more hosts than needed, 0.8 is 80 %; for a trace that does "
                                        "not know.")  # fmt: skip
    seeds: int | None = whole("--seeds", 1, 1000, metavar="N",
                              help="Traces to generate; 6 and more give intervals.  [default: 6, or the one of "
                              "seed=]")  # fmt: skip
    window: str | None = option("--window", metavar="A-B",
                                help="Jobs by arrival that count in the means; all are simulated.  [default: all "
                                "count]")  # fmt: skip


@cluster.command("compare", short_help="Simulate a trace of jobs under several policies.")
@options.takes(
    CompareConfig, "trace", "policies", "gpus", "costs", "gpus_per_host", "placement", "across_hosts", "seeds",
    "window", options.csv_option("Write a CSV with one row a simulation; with - it goes to stdout."),
    options.json_option,
)  # fmt: skip
def compare_command(config: CompareConfig, csv_to: str | None, json_to: str | None) -> None:
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

    options.check_targets({"--json": json_to, "--csv": csv_to})
    policies = parsed("--policies", parse_policies, config.policies)
    costs = parsed("--restart-cost", parse_costs, config.costs)
    for name, value in (("--placement", config.placement), ("--across-hosts", config.across_hosts)):
        if value is not None and config.gpus_per_host is None:
            raise SpecError(f"{name} is for a cluster of several hosts", hint="say how large: --gpus-per-host 8")
    placements = parsed("--placement", parse_placements, config.placement or "packed")
    numbers = _seeds(config.trace, config.seeds)
    window = None if config.window is None else parsed("--window", parse_window, config.window)

    def trace(seed: int | None) -> Trace:
        part = "" if seed is None else f"{',' if ':' in config.trace else ':'}seed={seed}"
        return parsed("--trace", load_trace, config.trace + part)

    console = make_console()
    asked = ComparisonRequest(
        config.trace,
        trace,
        numbers,
        policies,
        config.gpus,
        costs,
        config.gpus_per_host,
        placements,
        config.across_hosts,
        window,
    )
    record = compare(asked, command_line(), lambda said: console.print(said, highlight=False, markup=False))
    console.print()
    options.show_result(record, json_to, csv_to)
    options.write_json(record, json_to)
    options.write_csv(record, csv_to)


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


@dataclass(frozen=True, kw_only=True)
class LiveConfig:
    """Options of `xbench cluster run`."""

    policy: str = option("--policy", default="fifo", metavar="POLICY",
                         help="A policy that xbench list policies lists.")  # fmt: skip
    restarts: int | None = whole("--restarts", 1, 1000, metavar="N",
                                 help="Measure what a restart costs: the one job has its least and its most workers in "
                                 "turn, and changes N times.")  # fmt: skip
    engine: str = choice("--engine", "local", "ray", default="local",
                         help="What starts workers: this machine, or Ray (an optional extra).")  # fmt: skip
    slots: int | None = whole("--slots", 1, 100_000, metavar="N",
                              help="Workers at a time.  [default: the file's, else all cores or GPUs]")  # fmt: skip
    device: str = choice("--device", "cpu", "cuda", default="cpu", help="Device that a slot is: a core or a GPU.")
    address: str | None = option("--address", metavar="HOST:PORT",
                                 help="Address of a Ray cluster.  [default: one is started here]")  # fmt: skip
    retries: int = whole("--retries", 0, 1000, default=3, metavar="N",
                         help="How often a job that crashes is started again; with --resume, given-up jobs "
                         "too.")  # fmt: skip
    restart_s: float = option("--restart-cost", default="10s", metavar="DURATION",
                              read=lambda text: parsed("--restart-cost", parse_seconds, text),
                              help="What the policy believes that a start costs; --restarts measures it.")  # fmt: skip
    folder: str | None = option("--folder", type=click.Path(file_okay=False), metavar="FOLDER",
                                help="Where checkpoints and the ledger are kept.  [default: a new one in "
                                "results/runs]")  # fmt: skip
    resume: str | None = option("--resume", type=click.Path(file_okay=False), metavar="FOLDER",
                                help="Go on with the run of this folder, whatever ended it.")  # fmt: skip


@cluster.command("run", short_help="Run real jobs on this machine or a Ray cluster, under a policy.")
@click.argument("jobs", required=False, type=click.Path(path_type=Path), metavar="[JOBS.toml]")
@options.takes(
    LiveConfig, "policy", "restarts", "engine", "slots", "device", "address", "retries", "restart_s", "folder",
    "resume", options.json_option,
)  # fmt: skip
def run_command(config: LiveConfig, jobs: Path | None, json_to: str | None) -> None:
    """Run real jobs on this machine or a Ray cluster, under a policy.

    Each job trains with a fixed number of workers at a time: to give it another number it keeps a checkpoint, stops,
    and starts anew. In the end each job's completion time stands beside that of the simulator. A run that was
    interrupted, or whose controller was killed, goes on with --resume FOLDER, and loses no step that was kept.
    """
    from xbench.cluster.live import run as live
    from xbench.cluster.live.ledger import RunRequest
    from xbench.cluster.policies import parse_policy
    from xbench.report.console import make_console

    options.check_json(json_to)
    console, context = make_console(), click.get_current_context()

    def say(told: str) -> None:
        console.print(told, highlight=False, markup=False, soft_wrap=True)

    typed = {
        parameter.name: parameter.opts[0]
        for parameter in context.command.params
        if parameter.name and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    }
    if config.resume is not None:
        given = [typed[key] for key in OF_A_RUN if key in typed]
        if given or jobs is not None:
            extra = "JOBS.toml" if jobs is not None else given[0]
            raise SpecError(f"--resume goes on as the run began, and {extra} would change it", hint="leave it out")
        record = live.resume(Path(config.resume), say, config.retries if "retries" in typed else None)
    else:
        if jobs is None:
            hint = "name a TOML file with [[job]] for each: name, workload, steps and batch_size; or --resume FOLDER"
            raise SpecError("no jobs are named", hint=hint)
        if config.restarts is not None and "policy" in typed:
            raise SpecError("--restarts is a policy of its own, and --policy names another", hint="leave one out")
        policy = config.policy if config.restarts is None else f"alternate:times={config.restarts}"
        parsed("--policy", parse_policy, policy)
        folder = None if config.folder is None else Path(config.folder)
        check_folder(folder if folder is not None else results_folder(), "--folder", "name another --folder")
        fields = {key: getattr(config, key) for key in ("engine", "address", "device", "restart_s", "retries")}
        request = RunRequest(created=now(), command=command_line(), policy=policy, **fields)
        record = live.begin(jobs, request, config.slots, folder, say)
    console.print()
    options.show_result(record, json_to)
    options.write_json(record, json_to)
    failed = [job.name for job in record.jobs if job.status == "failed"]
    if failed:
        raise RunError(f"{len(failed)} of {counted(len(record.jobs), 'job')} failed: {', '.join(failed)}")
