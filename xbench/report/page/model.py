"""What a page is made of, before any of it is HTML: sections that hold figures, tables, facts, code and sentences.

Every text here is plain; the template escapes it. Only the text inside traces and layouts goes to plotly, which reads
a few tags: `axes.plain` makes those harmless. A colour in a trace is the name of a CSS property of the page, such as
'--c1', so that plots follow the page from light to dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from xbench.records import Label

Trace = dict[str, Any]
Layout = dict[str, Any]


@dataclass(frozen=True)
class Badge:
    """A word that is set apart: a label ('real'), a verdict ('faster'), or 'FAILED'."""

    text: str
    kind: str


Cell = str | Badge


@dataclass(frozen=True)
class Column:
    """A column of a table; figures are set right, with digits of one width."""

    name: str
    figures: bool = True


@dataclass(frozen=True)
class Table:
    """A table that can be opened and closed. The first cell of each row is the row's heading."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    opened: bool = False
    bulk: bool = False
    """Whether it is too long for paper: then it stays as it is when the page is printed."""
    shape: ClassVar[str] = "table"


@dataclass(frozen=True)
class Figure:
    """A plot with its title, what kinds of numbers it shows, how to read it, and the same numbers as a table."""

    key: str
    """Its id in the page, unique there."""
    title: str
    labels: Sequence[Label]
    told: str
    traces: Sequence[Trace]
    layout: Layout
    height: int
    table: Table | None = None
    narrow: Layout = field(default_factory=dict)
    """What of the layout is different where the page is narrow; keys may be paths, such as 'margin.r'."""
    folded: bool = False
    """Whether it is closed until somebody opens it."""
    shape: ClassVar[str] = "figure"


@dataclass(frozen=True)
class Facts:
    """Pairs of a word and a sentence."""

    pairs: Sequence[tuple[str, str]]
    shape: ClassVar[str] = "facts"


@dataclass(frozen=True)
class Code:
    """Something to copy."""

    text: str
    what: str
    """What the copy button copies, for those who hear it: 'the command'."""
    wrapped: bool = False
    """Whether a long line goes on in the next: a command may, Python may not."""
    shape: ClassVar[str] = "code"


@dataclass(frozen=True)
class Sentences:
    """A list of sentences; `mark` says of what kind: 'failed', 'warning' or ''."""

    lines: Sequence[str]
    mark: str = ""
    shape: ClassVar[str] = "sentences"


Block = Table | Figure | Facts | Code | Sentences


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    key: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A whole report. `answer`: the first sentence is the largest text of the page."""

    kind: str
    title: str
    subtitle: str
    labels: Sequence[Label]
    answer: Sequence[str]
    sections: Sequence[Section]
    incomplete: str | None = None
    failures: Sequence[str] = ()
    paste: Sequence[Block] = ()
    warnings: int = 0
    """How many there are in the section of that name."""


def figures(page: Page) -> list[Figure]:
    """All figures of a page in their order."""
    return [block for section in page.sections for block in section.blocks if isinstance(block, Figure)]
