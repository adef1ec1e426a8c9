"""Command line: a group that imports a command when it is used, and the one place that prints errors.

`xbench --help` must answer at once, so this module imports click, the error tree and the handling of signals alone. The
one-line summaries are in the table below. A test compares them with each command's own. Every exception ends in `main`
as one sentence on stderr and an exit code (`xbench.errors`). `--debug`, before or after the command, adds the
traceback.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

import click
from click.exceptions import NoArgsIsHelpError
from click.shell_completion import CompletionItem

from xbench.errors import SpecError, XbenchError, nearest, unknown
from xbench.former_words import former
from xbench.interrupts import stop_signals_interrupt
from xbench.limits import limit_behind
from xbench.text import STAND_INS, cut, defused, one_line
from xbench.version import __version__

RANKS_ELSEWHERE = ("--gpus", "--nproc", "--nproc-per-node", "--nproc_per_node", "--ranks", "--num-gpus")
"""Options of other launchers that give the number of ranks."""

OF_THE_PATH = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""Errors of the system that are a path's own: another path would do."""

MAX_CHARACTERS = 1000
"""Greatest length of an error message, and of a hint [characters]."""

COMMANDS: dict[str, tuple[str, str]] = {
    "profile": ("xbench.commands.compare", "Time every layer of a training step, fit the network, plan schedules."),
    "compare": ("xbench.commands.compare", "Run schedules side by side on real links and say which is fastest."),
    "tune": ("xbench.commands.tune", "Find the schedule to use for a workload, and print the line to paste."),
    "plan": ("xbench.commands.plan", "Plan schedules from a saved profile, as measured or what-if; needs no torch."),
    "converge": ("xbench.commands.compare", "Train on real data under every schedule, and compare loss and accuracy."),
    "regress": ("xbench.commands.regress", "Notice that a training step got slower: a gate for CI."),
    "cluster": ("xbench.commands.cluster",
                "Many jobs on one cluster: compare policies that share its GPUs; needs no torch."),
    "trace": ("xbench.commands.trace", "Profile a training from the traces that torch.profiler wrote."),
    "report": ("xbench.commands.report", "Show a saved result again; needs neither torch nor a GPU."),
    "env": ("xbench.commands.env", "Say what this machine has, what works on it, and what is missing."),
    "list": ("xbench.commands.listing:listing", "List runs, workloads, modes, fabrics, policies or traces."),
    "clean": ("xbench.commands.env", "Remove what killed runs left."),
}  # fmt: skip


class LazyGroup(click.Group):
    """Group whose commands have one module each, imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module. Return None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute or cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, with the nearest name in the error."""
        if not ctx.resilient_parsing and not args[0].startswith("-") and args[0] not in COMMANDS:
            both = " ".join(args[:2])
            name = both if former("command", both) else args[0]
            raise unknown("command", name, COMMANDS, listing="xbench --help")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Complete names from the table alone, and the group's own options."""
        named = [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return named + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands in `--help`, from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Invoke as click does, but report a broken pipe between processes.

        click ends the process silently for every broken pipe. `xbench.__main__` handles the case in which a reader
        closes our output. SIGTERM and SIGHUP end every command as Ctrl-C does.
        """
        try:
            with stop_signals_interrupt():
                return super().invoke(ctx)
        except BrokenPipeError as error:
            raise RuntimeError("a pipe between processes broke") from error


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors; anywhere in the line.")
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Find the fastest gradient-communication schedule for a training step, and prove it.

    Start with `xbench compare --modes ddp,auto`; `xbench COMMAND --help` explains each command.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code (`xbench.errors` lists them)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    ours = arguments.index("--") if "--" in arguments else len(arguments)
    debug = "--debug" in arguments[:ours]  # anywhere in the line, so that it works where the rest does not parse
    arguments = [word for word in arguments[:ours] if word != "--debug"] + arguments[ours:]
    for stream in (sys.stdout, sys.stderr):  # a character that the terminal cannot encode is no error: 'u' for 'µ'
        if hasattr(stream, "reconfigure") and (stream.encoding or "").lower().replace("-", "") != "utf8":
            stream.reconfigure(errors=STAND_INS)
    try:
        outcome = cli.main(args=arguments, prog_name="xbench", standalone_mode=False)
        sys.stdout.flush()
    except NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except (Exception, KeyboardInterrupt) as error:
        code, sentence, hint = _explain(error, arguments)
        if not (isinstance(error, (SpecError, click.ClickException)) and _another_rank_says_it()):
            _complain(sentence, hint, getattr(error, "lines", ()))
        if debug:
            click.echo(defused((getattr(error, "detail", None) or traceback.format_exc()).rstrip()), err=True)
        return code
    return outcome if isinstance(outcome, int) else 0


def _explain(error: BaseException, arguments: Sequence[str] = ()) -> tuple[int, str, str | None]:
    """Return exit code, one sentence and a hint for any exception of a command."""
    if isinstance(error, XbenchError):
        return error.exit_code, one_line(str(error)), error.hint or limit_behind(str(error))
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        return 130, "interrupted", None
    if isinstance(error, click.ClickException):
        return error.exit_code, *_usage(error, arguments)
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("xbench"):
        package = error.name.partition(".")[0]
        return 1, f"this needs the Python package {package!r}, which is not installed", f"pip install {package}"
    if isinstance(error, FileNotFoundError) and not error.filename and _folder_gone():
        return 2, "the folder that this was started in is gone", "cd to one that is there"
    if isinstance(error, OSError) and (why := error.strerror or one_line(str(error))):
        where = f"{error.filename}: " if error.filename else ""
        code = 2 if error.filename and error.errno in OF_THE_PATH else 1
        return code, f"{where}{why}", limit_behind(repr(error)) or "--debug shows where"
    told = one_line(f"{type(error).__name__}: {error}")
    if limit := limit_behind(told):
        return 1, told, limit
    return 1, f"this is a bug in xbench: {told}", "run the same command with --debug and report the traceback"


def _folder_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _another_rank_says_it() -> bool:
    """True if another launcher started this process as a rank above 0. Rank 0 then prints the error.

    RANK and WORLD_SIZE may be left over from an old run. If they are the only evidence, this returns False.
    """
    ranks = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
    if all(os.environ.get(name, "0") == "0" for name in ranks):
        return False
    from xbench.fabrics.cluster import ranks_around

    try:
        ours = ranks_around(os.environ)
    except XbenchError:
        return False
    return ours is not None and ours.rank > 0 and not ours.bare


def _complain(sentence: str, hint: str | None, lines: Sequence[str]) -> None:
    sentence = defused(cut(one_line(sentence), MAX_CHARACTERS))
    tail = f"\n  hint: {defused(cut(one_line(hint), MAX_CHARACTERS))}" if hint else ""
    tail += "".join(f"\n    {defused(one)}" for one in lines)
    colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    label = click.style("error:", fg="red", bold=True) if colour else "error:"
    click.echo(f"{label} {sentence}{tail}", err=True)


def _usage(error: click.ClickException, arguments: Sequence[str]) -> tuple[str, str | None]:
    """Return click's error as one sentence of ours, and a hint."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "xbench"
    hint: str | None = f"{path} --help lists what it takes"
    if isinstance(error, click.NoSuchOption):
        parameters = context.command.get_params(context) if context else []
        known = [name for parameter in parameters for name in parameter.opts]
        told, close = f"{path} has no option {error.option_name!r}", nearest(error.option_name, known)
        if "--fabric" in known and error.option_name in RANKS_ELSEWHERE:
            return told, _ranks_hint(error.option_name, arguments)
        if instead := former("option", f"{path} {error.option_name}".removeprefix("xbench "), error.option_name):
            return f"{path} {error.option_name} is gone: {instead}", None
        return told, f"did you mean {close}?" if close else hint
    if isinstance(error, click.MissingParameter):
        return _uncapital(error.format_message()), hint
    if isinstance(error, click.BadParameter):
        parameter = error.param
        name = (error.param_hint or (parameter.get_error_hint(context) if parameter and context else None)) or "value"
        name = str(name).strip("'")
        told = _uncapital(error.message).replace("valid integer range", "whole number").replace("<=x<=", " to ")
        kind = getattr(parameter, "type", None)
        if isinstance(kind, click.Choice):
            typed = error.message.partition("'")[2].partition("'")[0]
            close = nearest(typed, [str(one) for one in kind.choices])
            hint = f"did you mean {close!r}?" if close else hint
        return f"{name}: {told}", hint
    told, _, close = error.format_message().partition(" Did you mean ")
    if told.startswith("No such command"):
        name = f"{path} {told.split(chr(39))[1]}".removeprefix("xbench ")
        if instead := former("command", name):
            return f"command {name!r} is gone: {instead}", None
    if close:
        hint = f"did you mean {close}"
    return _uncapital(told), hint if isinstance(error, click.UsageError) else None


def _ranks_hint(option: str, words: Sequence[str]) -> str:
    """Hint at a fabric with the number of ranks that was typed after another launcher's option."""
    typed = next((word for word in words if word == option or word.startswith(f"{option}=")), "")
    after = words[words.index(typed) + 1 :] if typed else []
    count = typed.partition("=")[2] or (after[0] if after else "")
    return f"write --fabric local:ranks={count if count.isdecimal() else 'N'}"


def _uncapital(text: str) -> str:
    text = one_line(text).rstrip(".")
    return text[:1].lower() + text[1:]
