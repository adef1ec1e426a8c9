"""Parts of a page before it becomes HTML: sections that hold figures, tables, facts, code and sentences.

Every text here is plain, and the template escapes it. Only the text inside traces and layouts goes to plotly, which
reads a few tags; `axes.plain` makes those harmless. A colour in a trace is the name of a CSS property of the page, such
as '--c1'. Plots therefore follow the page from light to dark.
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
    """Highlighted word: a label ('real'), a verdict ('faster'), or 'FAILED'."""

    text: str
    kind: str

    @classmethod
    def of(cls, word: str) -> Badge:
        """Return a badge whose kind is its word: 'real', 'slower'."""
        return cls(word, word)


Cell = str | Badge


@dataclass(frozen=True)
class Column:
    """Column of a table. Figures are aligned right, with digits of equal width."""

    name: str
    figures: bool = True


def columns(names: Sequence[str], left: Sequence[str] = ()) -> list[Column]:
    """Return columns of these names, all of figures except those in `left`."""
    return [Column(name, figures=name not in left) for name in names]


@dataclass(frozen=True)
class Table:
    """Table that can be opened and closed. The first cell of each row is the row's heading."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    opened: bool = False
    bulk: bool = False
    """True if the table is too long for paper: printing does not open it."""
    shape: ClassVar[str] = "table"


@dataclass(frozen=True)
class Figure:
    """Plot with its title, the labels of its numbers, how to read it, and the same numbers as a table."""

    key: str
    """Unique id in the page."""
    title: str
    labels: Sequence[Label]
    told: str
    traces: Sequence[Trace]
    layout: Layout
    height: int
    table: Table | None = None
    narrow: Layout = field(default_factory=dict)
    """Changes to the layout on a narrow page; keys may be paths, such as 'margin.r'."""
    folded: bool = False
    """True if the figure is closed at first."""
    shape: ClassVar[str] = "figure"


@dataclass(frozen=True)
class Facts:
    """Pairs of a word and a sentence."""

    pairs: Sequence[tuple[str, str]]
    shape: ClassVar[str] = "facts"


@dataclass(frozen=True)
class Code:
    """Text to copy."""

    text: str
    what: str
    """Object of the copy button, for screen readers: 'the command'."""
    wrapped: bool = False
    """True if long lines may wrap: those of a command may, those of Python may not."""
    shape: ClassVar[str] = "code"


@dataclass(frozen=True)
class Sentences:
    """List of sentences; `mark` gives their kind: 'failed', 'warning' or ''."""

    lines: Sequence[str]
    mark: str = ""
    shape: ClassVar[str] = "sentences"


Block = Table | Figure | Facts | Code | Sentences


@dataclass(frozen=True)
class Section:
    """Heading and the blocks under it."""

    key: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """Whole report. The first sentence of `answer` is the largest text of the page."""

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
    """Number of warnings in the section of that name."""


def figures(page: Page) -> list[Figure]:
    """Return all figures of a page in their order."""
    return [block for section in page.sections for block in section.blocks if isinstance(block, Figure)]
