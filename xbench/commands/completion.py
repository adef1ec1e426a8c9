"""`xbench completion`: scripts with which bash, zsh and fish complete its words, and their protocol with xbench.

click's own scripts pass words as the shell splits them. They lose words with a comma (fish), behind `--modes=` (zsh) or
behind a ':' (bash). These scripts pass the line up to the cursor, and this module splits it at spaces.

The answer has one completion a line: its type and value, and for zsh and fish its help. A value that is not complete
(`shaped:`, `rate=`) gets no space behind it. `xbench.cli` imports this module when a shell asks for completions.
"""

from __future__ import annotations

import os
from typing import ClassVar

import click
from click.shell_completion import (
    CompletionItem,
    ShellComplete,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

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


_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' completion response type value
    response=$(env XBENCH_LINE="${COMP_LINE:0:COMP_POINT}" XBENCH_BREAKS="$COMP_WORDBREAKS" \
%(complete_var)s=bash_complete "$1")
    for completion in $response; do
        IFS=$'\\t' read -r type value <<< "$completion"
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=:,/] ]]; then
        compopt -o nospace
    fi
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_ZSH = """\
#compdef %(prog_name)s

%(complete_func)s() {
    local -a parts whole whole_shown open open_shown
    local completion shown line="${(j: :)words[1,CURRENT-1]} $PREFIX"
    for completion in "${(@f)$(env XBENCH_LINE="$line" %(complete_var)s=zsh_complete %(prog_name)s)}"; do
        parts=("${(@ps:\\t:)completion}")
        shown="$parts[2]${parts[3]:+  -- $parts[3]}"
        case "$parts[1]" in
            dir) _path_files -/ ;;
            file) _path_files ;;
            plain)
                if [[ "$parts[2]" == *[=:,/] ]]; then
                    open+=("$parts[2]") open_shown+=("$shown")
                else
                    whole+=("$parts[2]") whole_shown+=("$shown")
                fi ;;
        esac
    done
    (( $#whole )) && compadd -V words -l -d whole_shown -a whole
    (( $#open )) && compadd -V words -S '' -l -d open_shown -a open
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""

_FISH = """\
function %(complete_func)s
    set -l line (commandline -cp)
    for completion in (env XBENCH_LINE="$line" %(complete_var)s=fish_complete %(prog_name)s)
        set -l parts (string split -m 1 \\t -- $completion)
        switch $parts[1]
            case dir
                __fish_complete_directories (commandline -ct)
            case file
                __fish_complete_path (commandline -ct)
            case plain
                echo $parts[2]
        end
    end
end

complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


class LineComplete(ShellComplete):
    """Completion from the line before the cursor, in `$XBENCH_LINE`."""

    breaks: str = ""
    """Characters at which the shell splits words but xbench does not."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the complete words after the program's name, and the word under the cursor."""
        line = os.environ.get("XBENCH_LINE", "")
        words = split_arg_string(line)
        typed = "" if not words or line[-1:].isspace() else words.pop()
        program = next((at for at, word in enumerate(words) if os.path.basename(word) == self.prog_name), 0)
        return words[program + 1 :], typed

    def complete(self) -> str:
        """Return one completion a line: the text with which the shell replaces its own last word."""
        words, typed = self.get_completion_args()
        option, equals, _ = typed.partition("=")
        before = f"{option}=" if equals and option.startswith("-") else ""
        kept = max((typed.rfind(mark) for mark in self.breaks), default=-1) + 1
        return "\n".join(
            self.format_completion(CompletionItem((before + item.value)[kept:], item.type, item.help))
            for item in self.get_completions(words, typed)
        )

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Join type, value and help with tabs."""
        return "\t".join([item.type, item.value, *([" ".join(item.help.split())] if item.help else [])])


@add_completion_class
class Bash(LineComplete):
    """Completion for bash, which splits words at `$COMP_WORDBREAKS` and shows no help."""

    name: ClassVar[str] = "bash"
    source_template: ClassVar[str] = _BASH

    def complete(self) -> str:
        """See `LineComplete.complete`."""
        self.breaks = "".join(mark for mark in ":=" if mark in os.environ.get("XBENCH_BREAKS", ""))
        return super().complete()

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Join type and value with a tab."""
        return f"{item.type}\t{item.value}"


@add_completion_class
class Zsh(LineComplete):
    """Completion for zsh, which replaces the whole word."""

    name: ClassVar[str] = "zsh"
    source_template: ClassVar[str] = _ZSH


@add_completion_class
class Fish(LineComplete):
    """Completion for fish, which replaces the whole word."""

    name: ClassVar[str] = "fish"
    source_template: ClassVar[str] = _FISH
