"""Pieces of GitHub-flavoured Markdown: tables, folded sections, and text that shows as it is written.

What comes from outside (names, errors, warnings, commands) goes through `plain`, `strong` or `code`, which return
`Markup`: no pipe ends a cell, no line end a row, no tag or emphasis begins. `table` and `facts` escape every cell that
is no `Markup`, so that nothing foreign is forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from xbench.characters import defused

VISIBLE_WARNINGS = 3

_ALWAYS = re.compile(r"([\\`*~|])")
_AT_WORD_EDGES = re.compile(r"(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")


class Markup(str):
    """Text that is Markdown already: what is foreign in it has been escaped."""


def plain(text: str) -> Markup:
    """One line that shows as `text`. Markup stays as it is."""
    if isinstance(text, Markup):
        return text
    line = defused(" ".join(text.split()))
    line = _ALWAYS.sub(r"\\\1", line)
    line = _AT_WORD_EDGES.sub(r"\\_", line).replace("](", "]\\(")
    return Markup(line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def strong(text: str) -> Markup:
    """The same in bold."""
    return Markup(f"**{plain(text)}**")


def code(text: str) -> Markup:
    """`text` as inline code, fit for a table's cell; ticks in it become apostrophes."""
    return Markup("`" + defused(" ".join(text.split())).replace("`", "'").replace("|", "\\|") + "`")


def fenced(text: str, language: str = "") -> Markup:
    """A block that shows `text`, whatever fences stand in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markup(f"{fence}{language}\n{defused(text).rstrip()}\n{fence}")


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> Markup:
    """The first `left` columns to the left, the others to the right. Cells are escaped unless they are Markup."""
    sides = [Markup("---" if number < left else "---:") for number in range(len(headings))]
    heading, *lines = (f"| {' | '.join(map(plain, cells))} |" for cells in [headings, sides, *rows])
    return Markup("\n".join([heading.replace("|  |", "| |"), *lines]))


def details(summary: str, body: str) -> Markup:
    """A section that is folded until it is clicked; blank lines make GitHub read Markdown in it."""
    return Markup(f"<details><summary>{plain(summary)}</summary>\n\n{body}\n\n</details>")


def facts(pairs: Sequence[tuple[str, str]]) -> Markup:
    """A list of what is said about what; the label stands once for several."""
    return Markup("\n".join(f"- {strong(label)}: {plain(sentence)}" for label, sentence in pairs))


def lead(sentences: Sequence[str]) -> Markup:
    """The answer: its first sentence in bold."""
    first, *others = sentences
    return Markup(f"{strong(first)} {' '.join(map(plain, others))}".rstrip())


def quoted(note: str | None) -> str:
    """A sentence that stands out, such as that a run ended early; nothing for None."""
    return f"> {strong(note)}" if note else ""


def bullets(sentences: Iterable[str], *, bold: bool = False) -> str:
    """A list of sentences."""
    return "\n".join(f"- {strong(one) if bold else plain(one)}" for one in sentences)


def warning_list(warnings: Sequence[str]) -> str:
    """A few stand where they are seen; many are folded, and counted."""
    said = bullets(f"warning: {warning}" for warning in warnings)
    return details(f"{len(warnings)} warnings", said) if len(warnings) > VISIBLE_WARNINGS else said


def advice(found: Iterable[tuple[str, str | None]]) -> str:
    """What to do next, a sentence a line, with its command."""
    return "\n".join(f"- {plain(told)}{f' {code(command)}' if command else ''}" for told, command in found)
