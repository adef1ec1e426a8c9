"""`xbench regress`: detect on this machine or in CI that a training step got slower or sends more."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from xbench.commands import options
from xbench.config import RunConfig
from xbench.errors import SpecError, unknown
from xbench.option_fields import Finite
from xbench.record_files import command_line

if TYPE_CHECKING:
    from xbench.records import Regression
    from xbench.regress.session import RegressRequest

F = TypeVar("F", bound=Callable[..., Any])

CONFIG = Path("xbench.toml")
LAYERS = ("deterministic", "wall", "both")


@click.group("regress", short_help="Notice that a training step got slower: a gate for CI.")
def regress() -> None:
    """Notice that a training step got slower: a gate for CI.

    The suite stands in xbench.toml, which `init` writes. `check --base REV` measures two revisions here, by turns,
    which is the only way to judge times; `baseline` stores counts that a later `check` compares with, and learns how
    noisy this machine is.
    """


def _suite_options(pairs: str = "the suite's, or as many as it takes") -> Callable[[F], F]:
    """Add the options that measuring commands share; `pairs` describes the default in the help text."""
    return options.with_options(
        click.option("--config", type=click.Path(path_type=Path), default=CONFIG, show_default=True, metavar="FILE",
                     help="File with the suite: workloads, modes, fabrics, metrics, thresholds."),
        click.option("--check", "names", multiple=True, metavar="NAME", help="Only this check of it; may be repeated."),
        click.option("--pairs", type=click.IntRange(1, 200), help=f"Launch pairs.  [default: {pairs}]"),
        click.option("--budget", type=Finite(0.1, 1440), metavar="MINUTES",
                     help="Minutes to spend at most, in place of the suite's budget_minutes; a given number of pairs "
                     "ignores it."),
        options.field_option(RunConfig, "device", help="Where to compute; auto takes GPUs where there are any."),
        options.field_option(RunConfig, "timeout_s"),
        options.json_option,
    )  # fmt: skip


_layer_option = click.option(
    "--layer", type=click.Choice(LAYERS), default="both", show_default=True,
    help="What to judge: counts, plans and predictions; wall-clock times; or both.",
)  # fmt: skip


@regress.command("init", short_help="Write a suite and a GitHub workflow for your own model.")
@click.argument("workload", required=False)
@click.option("--install", metavar="COMMAND",
              help="Command that installs xbench in CI.  [default: pip, from where this xbench came]")  # fmt: skip
def init_command(workload: str | None, install: str | None) -> int:
    """Write xbench.toml, .github/workflows/xbench.yml and lines of .gitignore for WORKLOAD, such as models.py:make.

    Run it in the root of your repository. Without WORKLOAD, its files are searched for a function that returns
    (model, batch, loss). A file that is there already is never overwritten.
    """
    from xbench.regress.init_files import start

    files, no_workflow = start(workload, Path.cwd(), install)
    for path in files:
        click.echo(f"wrote {path}", err=True)
    if no_workflow is not None:
        click.echo(f"wrote no workflow: {no_workflow}", err=True)
    click.echo("commit them, then: xbench regress check --base HEAD~1", err=True)
    return 0


@regress.command(
    "check",
    cls=options.ThemedCommand,
    short_help="Measure the suite, and judge it against a base.",
    epilog=options.examples(
        "xbench regress check --base origin/main", "xbench regress check --base HEAD~1 --layer deterministic"
    ),
)
@click.option("--base", metavar="REV", help="Measure this git revision too, here and now, by turns with this tree.")
@click.option("--baseline", type=options.ResultPath(), metavar="FILE|DIR",
              help="Stored counts.  [default: this machine's and any's, under results/baselines]")  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit 4 for inconclusive, 5 for missing or not comparable, in place of 0.")
@click.option("--no-confirm", is_flag=True, help="Report a suspected slow-down without fresh launches that agree.")
@click.option("--markdown", "markdown_to", metavar="FILE|-", help="Write a summary for a pull request; - is stdout.")
@click.option("--junit", "junit_to", metavar="FILE|-", help="Write JUnit XML, one case a verdict; - is stdout.")
@_layer_option
@_suite_options()
def check_command(
    base: str | None,
    baseline: Path | None,
    strict: bool,
    no_confirm: bool,
    markdown_to: str | None,
    junit_to: str | None,
    json_to: str | None,
    **chosen: Any,
) -> int:
    """Measure the suite, and judge it against a revision, or its counts against a stored baseline.

    Exit code 3 says that something regressed. A wall-clock regression needs an exact test over pairs of fresh launches,
    an interval beyond the threshold, and fresh launches that agree; a count needs only to differ.
    """
    options.check_targets({"--json": json_to, "--markdown": markdown_to, "--junit": junit_to})
    if base is not None and baseline is not None:
        raise SpecError("--base and --baseline exclude each other", hint="--base REV judges times as well")
    request = _request(base=base, baseline=baseline, **chosen)
    request.confirm = request.suite.confirm and not no_confirm

    from xbench.regress import exit_code
    from xbench.regress.check import check
    from xbench.report.console import make_console
    from xbench.report.formats import junit
    from xbench.report.kinds.regression import regression_markdown

    console = make_console()
    kept = check(request, console)
    options.show_run(console, kept.record, kept.path, json_to, markdown_to, junit_to)
    options.write_text(markdown_to, lambda: regression_markdown(kept.record))
    options.write_text(junit_to, lambda: junit.render(kept.record, strict))
    _tell_github(kept.record)
    if kept.error is not None:
        raise kept.error
    return exit_code(kept.record, strict)


@regress.command("baseline", short_help="Store counts to compare with, and learn how noisy this machine is.")
@_suite_options(pairs="20")
@_layer_option
def baseline_command(json_to: str | None, layer: str, **chosen: Any) -> int:
    """Store the suite's counts, plans and predictions, and how far apart launches of the same code are here.

    A check without --base compares with these counts. Checks on this machine take no difference below twice its noise
    floor for a regression.
    """
    options.check_json(json_to)
    request = _request(layer=layer, **chosen)
    from xbench.regress.baseline import baseline
    from xbench.report.console import make_console

    kept = baseline(request, console := make_console())
    options.show_run(console, kept.record, kept.path, json_to)
    if kept.error is not None:
        raise kept.error
    return 0


@regress.command("launch", hidden=True, short_help="Carry out one order of a check.")
@click.argument("order", type=click.Path(path_type=Path), required=False)
@click.argument("answer", type=click.Path(path_type=Path), required=False)
@click.option("--protocol", is_flag=True, help="Print the version of orders and answers.")
def launch_command(order: Path | None, answer: Path | None, protocol: bool) -> int:
    """Carry out one ORDER of a check, and write the ANSWER: how a check talks to the xbench of another revision."""
    from xbench.regress.protocol import VERSION, JobRequest

    if protocol:
        click.echo(f'{{"protocol": {VERSION}}}')
        return 0
    if order is None or answer is None:
        raise SpecError("an order and a place for its answer are needed", hint="xbench regress check gives them")
    from pydantic import ValidationError

    from xbench.regress.worker_command import answer as carried_out

    try:
        asked = JobRequest.model_validate_json(order.read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        raise SpecError(f"{str(order)!r} is no order of version {VERSION}", hint=str(error).splitlines()[0]) from None
    answer.write_text(carried_out(asked).model_dump_json(), encoding="utf-8")
    return 0


def _request(
    *, layer: str, config: Path, names: tuple[str, ...], budget: float | None, **fields: Any
) -> RegressRequest:
    """Return the request: the suite from `config`, cut down to the named checks. Raises SpecError."""
    from xbench.regress import load_suite
    from xbench.regress.session import BOTH, RegressRequest

    suite = load_suite(config)
    known = [check.name for check in suite.checks]
    for name in names:
        if name not in known:
            raise unknown("check", name, known, listing=str(config))
    changed: dict[str, Any] = {"budget_minutes": budget} if budget is not None else {}
    if names:
        changed["checks"] = tuple(check for check in suite.checks if check.name in names)
    return RegressRequest(
        suite=suite.model_copy(update=changed),
        folder=config.absolute().parent,
        layers=BOTH if layer == "both" else (layer,),  # type: ignore[arg-type]
        command=command_line(),
        **fields,
    )


def _tell_github(regression: Regression) -> None:
    """In a GitHub workflow, write annotations to stderr and append Markdown to the step's summary."""
    from xbench.report.kinds.regression import LIMIT_BYTES, regression_markdown, workflow_commands

    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in workflow_commands(regression):
            click.echo(line, err=True)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return
    try:
        with open(summary, "a", encoding="utf-8") as stream:
            stream.write(regression_markdown(regression, LIMIT_BYTES - stream.tell()))
    except OSError as error:  # the exit code depends on the measurements alone
        click.echo(f"the summary of the step was not written: {error}", err=True)
