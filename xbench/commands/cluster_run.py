"""`xbench cluster run`: real jobs on real slots, under a policy of the simulator."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click
from click.core import ParameterSource

from xbench.commands.completing import complete_policy
from xbench.commands.options import check_json, json_option, show_result, write_json
from xbench.errors import RunError, SpecError
from xbench.option_fields import parsed
from xbench.units import parse_seconds

OF_A_RUN = ("policy", "engine", "slots", "folder", "restart_text", "device", "address")
"""Options that are fixed when a run begins; `--resume` refuses them."""


@click.command("run", short_help="Run real jobs on this machine or a Ray cluster, under a policy.")
@click.argument("jobs", required=False, type=click.Path(path_type=Path), metavar="[JOBS.toml]")
@click.option("--policy", default="fifo", show_default=True, shell_complete=complete_policy, metavar="POLICY",
              help="A policy that xbench cluster policies lists.")  # fmt: skip
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
            extra = "JOBS.toml" if jobs is not None else _option(context, given[0])
            raise SpecError(f"--resume goes on as the run began, and {extra} would change it", hint="leave it out")
        counted = context.get_parameter_source("retries") is ParameterSource.COMMANDLINE
        record = live.resume(resume, say, retries if counted else None)
    else:
        if jobs is None:
            raise SpecError("no jobs are named", hint="xbench cluster run examples/jobs.toml, or --resume FOLDER")
        parsed("--policy", parse_policy, policy)
        record = live.begin(
            live.LiveRequest(
                jobs=jobs,
                policy=policy,
                engine="ray" if engine == "ray" else "local",
                folder=folder,
                command=shlex.join(["xbench", *sys.argv[1:]]),
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
        raise RunError(f"{len(failed)} of {len(record.jobs)} jobs failed: {', '.join(failed)}")


def _option(context: click.Context, name: str) -> str:
    return next(parameter.opts[0] for parameter in context.command.params if parameter.name == name)
