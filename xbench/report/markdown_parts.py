"""Pieces of GitHub-flavoured Markdown: tables, folded sections, and text that shows as it is written.

What comes from outside (names, errors, warnings, commands) goes through `plain` or `code`: no pipe ends a cell, no line
end a row, no tag or emphasis begins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_ALWAYS = re.compile(r"([\\`*~|])")
_AT_WORD_EDGES = re.compile(r"(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")


def plain(text: str) -> str:
    """One line that shows as `text`."""
    line = " ".join(text.split())
    line = _ALWAYS.sub(r"\\\1", line)
    line = _AT_WORD_EDGES.sub(r"\\_", line).replace("](", "]\\(")
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def code(text: str) -> str:
    """`text` as inline code, fit for a table's cell; ticks in it become apostrophes."""
    return "`" + " ".join(text.split()).replace("`", "'").replace("|", "\\|") + "`"


def fenced(text: str, language: str = "") -> str:
    """A block that shows `text` as it is, whatever fences stand in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Cells as they are (escape what is foreign); the first `left` columns to the left, the others to the right."""
    sides = ["---" if number < left else "---:" for number in range(len(headings))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [headings, sides, *rows])


def details(summary: str, body: str) -> str:
    """A section that is folded until it is clicked; blank lines make GitHub read Markdown in it."""
    return f"<details><summary>{plain(summary)}</summary>\n\n{body}\n\n</details>"


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """A list of what is said about what; the label stands once for several."""
    return "\n".join(f"- **{label}**: {plain(sentence)}" for label, sentence in pairs)
