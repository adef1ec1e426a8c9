"""`xbench script`: write the launch script or manifest of a comparison for another machine's launcher."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xbench.commands.options import check_targets, force_option, takes, write_text
from xbench.errors import SpecError, unknown
from xbench.option_fields import choice, option, read_config, whole

if TYPE_CHECKING:
    from xbench.spec import ModeSpec

COMMANDS = ("compare", "profile")


@dataclass(frozen=True, kw_only=True)
class ScriptConfig:
    """Options of `xbench script`."""

    engine: str = choice(
        "--engine", "torchrun", "slurm", "kubernetes", required=True, help="What starts the ranks there."
    )
    nodes: int = whole("--nodes", 1, 100_000, default=2, help="Machines to run on.")
    ranks: int | None = whole(
        "--ranks-per-node", 1, 1024, help="Ranks on each node.  [default: one a GPU, two a GPU for a paired mode]"
    )
    gpus: int = whole("--gpus-per-node", 0, 1024, default=0, help="GPUs to ask Slurm or Kubernetes for.")
    name: str = option(
        "--name",
        default="xbench",
        help="Name of the job: a letter first, then letters, digits and inner hyphens; at most 53, all lower-case.",
    )
    time: str | None = option("--time", metavar="LIMIT", help="Slurm's time limit, as it writes it: 30, 1:30:00, 2-12.")
    partition: str | None = option("--partition", help="Slurm's partition.")
    account: str | None = option("--account", help="Slurm's account.")
    image: str | None = option("--image", help="The container image for Kubernetes: one with xbench in it.")
    output: Path | None = option("--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                                 help="Where to write it.  [default: stdout]")  # fmt: skip


@click.command(
    "script",
    short_help="Write the launch script of a comparison for torchrun, Slurm or Kubernetes.",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@force_option
@takes(ScriptConfig, "engine", "nodes", "ranks", "gpus", "name", "time", "partition", "account", "image", "output")
@click.argument("command", metavar="COMMAND")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
def script(config: ScriptConfig, command: str, arguments: tuple[str, ...]) -> int:
    """Write the launch script of a comparison for torchrun, Slurm or Kubernetes.

    COMMAND is compare or profile, with its own arguments after it, which are checked here:
    xbench script --engine slurm --nodes 4 compare resnet50 --modes ddp,auto
    """
    _check(config)
    from xbench.runs.prepare import check_fabric
    from xbench.spec import FabricSpec, processes_of

    modes = check_inner(command, arguments)
    processes = processes_of(modes) if modes else 1
    ranks = config.ranks or processes * max(1, config.gpus)
    _check_shared(processes, config.nodes, ranks, config.gpus)
    try:
        check_fabric(FabricSpec(name="cluster", hosts=config.nodes, ranks=ranks // processes), modes)
    except SpecError as error:
        raise SpecError(str(error), hint="--nodes and --ranks-per-node say how many ranks there are") from None
    check_targets({"--output": str(config.output) if config.output is not None else None})

    from xbench import scripts

    words = tuple(arguments)
    if config.engine == "kubernetes" and not any(word.partition("=")[0] == "--json" for word in words):
        words = (*words, "--json", "-")
    text = scripts.written(
        scripts.Launch(
            config.engine, command, words, config.nodes, ranks, config.name, config.time, config.gpus,
            config.partition, config.account, config.image,
            environment=scripts.captured(), withheld=scripts.withheld(), written_with=scripts.versions(),
        )
    )  # fmt: skip
    if config.output is None:
        click.echo(text, nl=False)
    else:
        write_text(str(config.output), lambda: text)
        click.echo(f"wrote {config.output}", err=True)
    return 0


def check_inner(command: str, arguments: tuple[str, ...]) -> tuple[ModeSpec, ...]:
    """Check the arguments of the command in the script; return its modes: no mode for a profile.

    Raises UsageError, or click's own errors.
    """
    if command not in COMMANDS:
        raise unknown("command for a script", command, COMMANDS)
    from xbench.config import CompareConfig, ProfileConfig
    from xbench.runs.prepare import check_compressed, check_request

    kind = CompareConfig if command == "compare" else ProfileConfig
    root = click.get_current_context().find_root()
    chosen = root.command.get_command(root, command) if isinstance(root.command, click.Group) else None
    assert chosen is not None  # it is in COMMANDS
    given: dict[str, Any] = chosen.make_context(f"xbench {command}", list(arguments)).params
    fabric = given["fabric"]
    config = read_config(kind, given)
    if config.fabric.name not in ("auto", "cluster"):
        raise SpecError(
            f"--fabric {fabric} is of one machine, and a script is for the ranks that its engine starts",
            hint="leave --fabric out",
        )
    if not isinstance(config, CompareConfig):
        return ()
    if config.until is not None:
        raise SpecError("--until starts the ranks again, and a script's engine starts them once", hint="leave it out")
    _, modes = check_request(config)
    check_compressed(modes, config.compress)
    return modes


def _check_shared(jobs: int, nodes: int, ranks: int, gpus: int) -> None:
    """Raise SpecError if `jobs`, a process each, cannot share the ranks of each node."""
    if jobs > 1 and (ranks % jobs or nodes * ranks < 2 * jobs):
        raise SpecError(
            f"{jobs} jobs share the devices, so each node needs {jobs} ranks a device and the jobs two ranks each, and "
            f"this makes {ranks} a node, {nodes * ranks} in all",
            hint=f"try --ranks-per-node {max(2 if nodes > 1 else 4, jobs * gpus)}",
        )


def _check(config: ScriptConfig) -> None:
    """Raise SpecError for a name, limit or option that the engine would refuse or ignore."""
    engine, name, time, image = config.engine, config.name, config.time, config.image
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,51}[a-z0-9])?", name):
        raise SpecError(
            f"--name: {name!r} is no name for a job",
            hint="a lower-case letter first, then lower-case letters, digits and inner hyphens, as in xbench-2",
        )
    if time is not None and not re.fullmatch(r"[0-9]+(:[0-9]+){0,2}|[0-9]+-[0-9]+(:[0-9]+){0,2}", time):
        raise SpecError(f"--time: {time!r} is not a time limit as Slurm writes it", hint="1:30:00")
    of_slurm = {"--time": time, "--partition": config.partition, "--account": config.account}
    for flag, value in of_slurm.items():
        if value is None:
            continue
        if engine != "slurm":
            raise SpecError(f"{flag} is Slurm's, and this is for {engine}", hint="leave it out")
        if not re.fullmatch(r"[\w.,:@%+/-]+", value):
            raise SpecError(f"{flag}: {value!r} does not fit on a line of #SBATCH")
    if engine == "kubernetes" and not image:
        raise SpecError("Kubernetes needs an image with xbench in it", hint="--image registry/xbench:tag")
    if engine != "kubernetes" and image:
        raise SpecError(f"--image is for Kubernetes, and this is for {engine}", hint="leave it out")
