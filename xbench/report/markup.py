"""Pieces of GitHub-flavoured Markdown: tables, folded sections, and escaped text.

Foreign text (names, errors, warnings, commands) goes through `plain`, `strong` or `code`, which return `Markup`. No
pipe in it ends a cell, no line end ends a row, and no tag or emphasis begins. `table` and `facts` escape every cell
that is not `Markup`, so that no foreign text is missed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from xbench.text import defused

VISIBLE_WARNINGS = 3

_ALWAYS = re.compile(r"([\\`*~|])")
_AT_WORD_EDGES = re.compile(r"(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")


class Markup(str):
    """Text that is Markdown already, with its foreign parts escaped."""


def plain(text: str) -> Markup:
    """Return one line that shows as `text`. Markup is not changed."""
    if isinstance(text, Markup):
        return text
    line = defused(" ".join(text.split()))
    line = _ALWAYS.sub(r"\\\1", line)
    line = _AT_WORD_EDGES.sub(r"\\_", line).replace("](", "]\\(")
    return Markup(line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def strong(text: str) -> Markup:
    """Return the same in bold."""
    return Markup(f"**{plain(text)}**")


def code(text: str) -> Markup:
    """Return `text` as inline code that fits into a table's cell; backticks become apostrophes."""
    return Markup("`" + defused(" ".join(text.split())).replace("`", "'").replace("|", "\\|") + "`")


def fenced(text: str, language: str = "") -> Markup:
    """Return a code block that shows `text`, whatever fences it holds."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markup(f"{fence}{language}\n{defused(text).rstrip()}\n{fence}")


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> Markup:
    """Return a table; the first `left` columns are aligned left. Cells are escaped unless they are Markup."""
    sides = [Markup("---" if number < left else "---:") for number in range(len(headings))]
    heading, *lines = (f"| {' | '.join(map(plain, cells))} |" for cells in [headings, sides, *rows])
    return Markup("\n".join([heading.replace("|  |", "| |"), *lines]))


def details(summary: str, body: str) -> Markup:
    """Return a folded section. Blank lines make GitHub read Markdown in it."""
    return Markup(f"<details><summary>{plain(summary)}</summary>\n\n{body}\n\n</details>")


def facts(pairs: Sequence[tuple[str, str]]) -> Markup:
    """Return a list of labelled sentences; a label shared by several sentences appears once."""
    return Markup("\n".join(f"- {strong(label)}: {plain(sentence)}" for label, sentence in pairs))


def lead(sentences: Sequence[str]) -> Markup:
    """Return the answer with its first sentence in bold."""
    first, *others = sentences
    return Markup(f"{strong(first)} {' '.join(map(plain, others))}".rstrip())


def quoted(note: str | None) -> str:
    """Return a highlighted sentence, such as one on a run that ended early; empty for None."""
    return f"> {strong(note)}" if note else ""


def bullets(sentences: Iterable[str], *, bold: bool = False) -> str:
    """Return a list of sentences."""
    return "\n".join(f"- {strong(one) if bold else plain(one)}" for one in sentences)


def warning_list(warnings: Sequence[str]) -> str:
    """Return the warnings: a few are visible, many are folded and counted."""
    said = bullets(f"warning: {warning}" for warning in warnings)
    return details(f"{len(warnings)} warnings", said) if len(warnings) > VISIBLE_WARNINGS else said


def advice(found: Iterable[tuple[str, str | None]]) -> str:
    """Return advice, one sentence a line, with its command."""
    return "\n".join(f"- {plain(told)}{f' {code(command)}' if command else ''}" for told, command in found)
