"""`xbench completion`: print the script that lets a shell complete commands, options, workloads, modes and results."""

from __future__ import annotations

import os

import click

from xbench.errors import SpecError

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_XBENCH_COMPLETE"
"""Environment variable that the shell's script sets to request completions; click reads it."""


@click.command(name="completion", short_help="Print the script that completes xbench's words in your shell.")
@click.argument("shell", required=False, type=click.Choice(SHELLS), metavar="[bash|zsh|fish]")
def completion(shell: str | None) -> None:
    """Print the script that completes xbench's words in your shell.

    \b
    bash: echo 'eval "$(xbench completion bash)"' >> ~/.bashrc
    zsh:  echo 'eval "$(xbench completion zsh)"' >> ~/.zshrc   (after compinit)
    fish: xbench completion fish > ~/.config/fish/completions/xbench.fish

    It completes commands, options, workloads (`train.py:make` too), modes after a comma, fabrics with their options,
    and results.  [default: the shell that $SHELL names]
    """
    from click.shell_completion import get_completion_class

    from xbench.commands import shells  # noqa: F401 (registers the shells)

    chosen = shell or os.path.basename(os.environ.get("SHELL", ""))
    if chosen not in SHELLS:
        raise SpecError(
            f"$SHELL names {chosen!r}, and completion is for bash, zsh and fish" if chosen else "$SHELL is not set",
            hint="name the shell: xbench completion bash",
        )
    complete = get_completion_class(chosen)
    assert complete is not None  # click knows all three shells
    context = click.get_current_context().find_root()
    click.echo(complete(context.command, {}, "xbench", VARIABLE).source(), nl=False)
