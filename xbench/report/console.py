"""What every terminal report draws with: the console, sentences, facts with their label in the margin, tables.

Off a terminal there is no colour and a fixed width. `markup` is off everywhere: names may hold brackets. A console of
`make_console` prints no control character but its own, and no line that a CI system takes for a command.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD, Box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from xbench.characters import command_breaks, visible_lines
from xbench.report.page import model as page

NARROW_COLUMNS = 84
"""Below this, tables become stacked blocks."""

_ANY_WIDTH = 10_000
_TIED = "\ue000"
_TIES = re.compile(
    r"(?<=\d) (?=%|(?:[mµn]?s|min|h|d|[KMGT]?i?B|[kMG]?bit/s|px|[kMG])(?![\w-]))"
    r"|(?<=[\w%],) (?=[-+\d.][^\[\],\n]{0,12}\])"
)
_RULED = Box(str(SIMPLE_HEAD), ascii=True)
"""Called ASCII so that rich draws no other, wider box on such terminals: `xbench.characters` stands in for the line."""

OFF_TTY_COLUMNS = 100


class HarmlessConsole(Console):
    """A console whose text cannot steer a terminal or a CI system, wherever it comes from. Styles are rich's own.

    A number and its unit stay on one line. Off a terminal no line ends in blanks.
    """

    _depth = 0

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich's, with controls in the text written out."""
        if isinstance(renderable, Text):
            renderable = _tied(renderable)
        self._depth += 1
        try:
            segments = [_harmless(segment) for segment in super().render(renderable, options)]
        finally:
            self._depth -= 1
        if self._depth:
            return segments
        harmless = _without_commands(segments)
        return harmless if self.is_terminal else _without_trailing_blanks(harmless)


def _harmless(segment: Segment) -> Segment:
    if segment.control:
        return segment
    return segment._replace(text=visible_lines(segment.text).replace(_TIED, " "))


def _tied(text: Text) -> Text:
    """The text with the space between a number and its unit, and those within an interval, kept on one line.

    rich breaks lines at every kind of space, so a character that is none stands there until lines are made.
    """
    text = text.copy()
    text.plain = _TIES.sub(_TIED, text.plain)
    return text


def _without_trailing_blanks(segments: Iterable[Segment]) -> list[Segment]:
    """The segments without the spaces at the ends of their lines."""
    kept: list[Segment] = []
    ends = False  # whether what follows, seen from the end, begins a new line
    for segment in reversed(list(segments)):
        if not segment.control:
            *lines, last = segment.text.split("\n")
            last = last.rstrip(" ") if ends else last
            text = "\n".join([*(line.rstrip(" ") for line in lines), last])
            ends = text.startswith("\n") or (ends and not text)
            segment = segment._replace(text=text)
        kept.append(segment)
    return kept[::-1]


def _without_commands(segments: Sequence[Segment]) -> Iterable[Segment]:
    """The segments of whole lines, none of which is a command, however a long text was folded."""
    places = command_breaks("".join(segment.text for segment in segments if not segment.control))
    at = 0
    for segment in segments:
        text = "" if segment.control else segment.text
        if places and text:
            own = [place - at for place in places if at < place <= at + len(text)]
            at += len(text)
            for place in reversed(own):
                segment = segment._replace(text=f"{segment.text[:place]} {segment.text[place:]}")
        yield segment


def make_console(*, stderr: bool = True) -> Console:
    """The console for tables: colour only on a terminal and without NO_COLOR; logs get 100 columns, or $COLUMNS."""
    console = HarmlessConsole(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        console.width = OFF_TTY_COLUMNS
    return console


def say(console: Console, sentence: str, style: str = "") -> None:
    """A sentence, folded to the terminal's width."""
    console.print(Text(sentence, style=style))


def say_next(console: Console, advice: Iterable[tuple[str, str | None]]) -> None:
    """What to do next: sentences, each with its command on a line of its own that can be copied."""
    for sentence, command in advice:
        say(console, sentence)
        if command is not None:
            console.print(Text(f"  {command}", style="cyan"), soft_wrap=True)


def fact(console: Console, label: str, sentence: str, style: str = "") -> None:
    """A sentence with what it is about in the margin."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=10, no_wrap=True)
    grid.add_column()
    grid.add_row(Text(label, style=style or "dim"), Text(sentence, style=style))
    console.print(grid)


def titled_table(title: str, *columns: tuple[str, str]) -> Table:
    """A table with a left-aligned title; each column is its heading and 'left' or 'right'."""
    table = Table(title=title, title_justify="left", title_style="italic", box=_RULED, padding=(0, 1, 0, 0))
    for heading, side in columns:
        right = side == "right"
        table.add_column(heading, justify="right" if right else "left", no_wrap=right, overflow="fold")
    return table


def as_text(table: page.Table) -> Table:
    """A page's table without its title."""
    shown = titled_table("", *((column.name, "right" if column.figures else "left") for column in table.columns))
    for row in table.rows:
        shown.add_row(*(Text(cell if isinstance(cell, str) else cell.text) for cell in row))
    return shown


def indented(console: Console, text: str) -> None:
    """A line of a stacked block; where it is folded, it goes on below its own beginning."""
    told = text.lstrip()
    console.print(Padding(Text(told), (0, 0, 0, 2 + len(text) - len(told)), expand=False))


def spare_columns(console: Console, table: Table) -> int:
    """How many columns of the terminal are left beside a table as wide as it wants to be; below 0 it does not fit."""
    unlimited = console.options.update(max_width=_ANY_WIDTH)
    return console.width - console.measure(table, options=unlimited).maximum


def headline(console: Console, sentences: Iterable[str]) -> None:
    """The answer: its first sentence stands out."""
    for position, sentence in enumerate(sentences):
        say(console, sentence, "bold" if position == 0 else "")


def facts(console: Console, pairs: Iterable[tuple[str, str]], warnings: Iterable[str] = ()) -> None:
    """Sentences with what they are about, and warnings below them."""
    for label, sentence in pairs:
        fact(console, label, sentence)
    for warning in warnings:
        fact(console, "warning", warning, "yellow")


def table_or_blocks(
    console: Console, title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str]
) -> None:
    """A table where it fits, with the columns `left` to the left; else a block a row, below its first cell."""
    rows = list(rows)
    shown = titled_table(title, *((name, "left" if name in left else "right") for name in headings))
    for row in rows:
        shown.add_row(*map(Text, row))
    if spare_columns(console, shown) >= 0:
        console.print(shown)
        return
    if title:
        say(console, title, "italic")
    for name, *cells in rows:
        console.print(Text(f"  {name}", style="bold"))
        indented(console, f"  {', '.join(f'{h} {cell}' for h, cell in zip(headings[1:], cells, strict=True))}")


def basis(console: Console, note: str, pairs: Iterable[tuple[str, str]], warnings: Iterable[str]) -> None:
    """What columns mean, and below it what the record rests on."""
    console.print()
    say(console, note, "dim")
    console.print()
    facts(console, pairs, warnings)
