"""Completion in bash, where ':' and '=' end a word: of `crossover:wf` a completer gets `wf`, and replaces only that.

click's own script passes the words as bash splits them. This one passes the line, splits it as if those two were
letters, and gives back of each completion what comes after the last of them.
"""

from __future__ import annotations

import os

from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

_SOURCE = """\
%(complete_func)s() {
    local IFS=$'\\n' completion response type value
    response=$(env XBENCH_LINE="${COMP_LINE:0:COMP_POINT}" XBENCH_BREAKS="$COMP_WORDBREAKS" \
%(complete_var)s=bash_complete "$1")
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
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


@add_completion_class
class LineComplete(BashComplete):
    """click's completion of bash, from the line in place of its words."""

    name = "bash"
    source_template = _SOURCE

    def get_completion_args(self) -> tuple[list[str], str]:
        """The whole words after the program's name, and the one that the cursor is in."""
        line = os.environ.get("XBENCH_LINE", "")
        words = split_arg_string(line)
        typed = "" if not words or line[-1:].isspace() else words.pop()
        program = next((at for at, word in enumerate(words) if os.path.basename(word) == self.prog_name), 0)
        return words[program + 1 :], typed

    def complete(self) -> str:
        """One completion a line, of each what bash is going to put in place of its own last word."""
        words, typed = self.get_completion_args()
        option, equals, _ = typed.partition("=")
        before = f"{option}=" if equals and option.startswith("-") else ""
        breaks = os.environ.get("XBENCH_BREAKS", "")
        kept = max((typed.rfind(mark) for mark in ":=" if mark in breaks), default=-1) + 1
        found = self.get_completions(words, typed)
        return "\n".join(self.format_completion(_after(item, before, kept)) for item in found)


def _after(item: CompletionItem[str], before: str, kept: int) -> CompletionItem[str]:
    if item.type != "plain":
        return item
    return CompletionItem((before + item.value)[kept:], help=item.help)
