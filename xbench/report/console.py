"""Console of every terminal report: sentences, facts with a label in the margin, and tables.

Without a terminal there is no colour, and the width is fixed. `markup` is off everywhere, because names may hold
brackets. A console of `make_console` prints no control character but its own, and no line that a CI system reads as a
command.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD, Box
from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from xbench.report.page import model as page
from xbench.text import UNBROKEN, command_breaks, unbroken, visible_lines

NARROW_COLUMNS = 84
"""Width below which tables become stacked blocks."""

_ANY_WIDTH = 10_000
_TIES = re.compile(
    r"(?<=\d) (?=%|(?:[mµn]?s|min|h|d|[KMGT]?i?B|[kMG]?bit/s|px|[kMG])(?![\w-]))"
    r"|(?<=[\w%],) (?=[-+\d.][^\[\],\n]{0,12}\])"
)
_RULED = Box(str(SIMPLE_HEAD), ascii=True)
"""Box marked as ASCII, so that rich keeps it on terminals without Unicode; `xbench.text` replaces its line."""

OFF_TTY_COLUMNS = 100
MARGIN_COLUMNS = 10


class HarmlessConsole(Console):
    """Console whose text cannot steer a terminal or a CI system, whatever its source. Styles are rich's own.

    A number and its unit stay on one line, and so does a line to paste, however long (`xbench.text.unbroken`). Without
    a terminal, no line ends in blanks.
    """

    _depth = 0

    def print(self, *objects: Any, crop: bool = False, **how: Any) -> None:
        """See `Console.print`. Nothing is cropped: a line to paste may be longer than the terminal is wide."""
        super().print(*objects, crop=crop, **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See `Console.render`. Control characters in the text are written out.

        rich breaks lines at every kind of space, so another character stands in for tied spaces until lines are made.
        """
        if isinstance(renderable, Text):
            renderable = _tied(renderable)
            if self._depth == 0 and not (options or self.options).no_wrap:
                renderable = _folded(renderable, (options or self.options).max_width)
        self._depth += 1
        try:
            segments = [
                segment
                if segment.control
                else segment._replace(text=visible_lines(segment.text).replace(UNBROKEN, " "))
                for segment in super().render(renderable, options)
            ]
        finally:
            self._depth -= 1
        if self._depth:
            return segments
        harmless = _without_commands(segments)
        return harmless if self.is_terminal else _without_trailing_blanks(harmless)


def _tied(text: Text) -> Text:
    """Return a copy with another character for each space where no line may end."""
    text = text.copy()
    text.plain = unbroken(_TIES.sub(UNBROKEN, text.plain))
    return text


def _folded(text: Text, width: int) -> Text:
    """Return the text in lines of at most `width` columns, folded at spaces; only a line to paste may be longer."""
    lines = []
    for line in text.split("\n", allow_blank=True):
        plain, begin, places = line.plain, 0, []
        for word in re.finditer(r"[^ ]+", plain):
            fits = cell_len(plain[begin : word.end()]) <= width
            if not fits and plain[begin : word.start()].strip():
                begin = word.start()
                places.append(begin)
                fits = cell_len(word[0]) <= width
            if not fits and UNBROKEN not in word[0]:
                pieces = chop_cells(word[0], width)
                places += [begin := begin + len(piece) for piece in pieces[:-1]]
        lines += list(line.divide(places))
    for line in lines[:-1]:
        line.rstrip()
    folded = Text("\n", end=text.end).join(lines)
    folded.plain = folded.plain.replace(UNBROKEN, " ")
    folded.no_wrap, folded.overflow = True, "ignore"
    return folded


def _without_trailing_blanks(segments: Iterable[Segment]) -> list[Segment]:
    kept: list[Segment] = []
    ends = False  # True if the text after this segment begins a new line
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
    """Return the segments with spaces inserted, so that no line is a command, even where a long text was folded."""
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
    """Return the console for tables. Colour needs a terminal and no NO_COLOR; logs get 100 columns, or $COLUMNS."""
    console = HarmlessConsole(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        console.width = OFF_TTY_COLUMNS
    return console


def say(console: Console, sentence: str, style: str = "") -> None:
    """Print a sentence, folded to the terminal's width."""
    console.print(Text(sentence, style=style))


def say_next(console: Console, advice: Iterable[tuple[str, str | None]]) -> None:
    """Print advice: sentences, each with its command on a line of its own that can be copied."""
    for sentence, command in advice:
        say(console, sentence)
        if command is not None:
            console.print(Text(f"  {command}", style="cyan"), soft_wrap=True)


def fact(console: Console, label: str, sentence: str, style: str = "") -> None:
    """Print a sentence with its label in the margin."""
    margin = Text(f"{label:{MARGIN_COLUMNS}.{MARGIN_COLUMNS}} ", style=style or "dim")
    _hang(console, margin, Text(sentence, style=style))


def filled_table(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[str | Text]], left: Sequence[str]
) -> Table:
    """Return a table of these rows, its title at the left. The columns `left` are aligned left, the others right."""
    table = Table(title=title, title_justify="left", title_style="italic", box=_RULED, padding=(0, 1, 0, 0))
    for heading in headings:
        right = heading not in left
        table.add_column(heading, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def fitting_table(
    console: Console,
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Sequence[str],
    dispensable: Sequence[str],
) -> Table:
    """Return a table of these rows. Columns in `dispensable` are omitted one by one until it fits, or all are."""
    for count in range(len(dispensable) + 1):
        kept = [at for at, heading in enumerate(headings) if heading not in dispensable[:count]]
        cells = ([row[at] for at in kept] for row in rows)
        table = filled_table(title, [headings[at] for at in kept], cells, left)
        if spare_columns(console, table) >= 0:
            break
    return table


def as_text(table: page.Table) -> Table:
    """Return a page's table without its title."""
    left = [column.name for column in table.columns if not column.figures]
    rows = [[cell if isinstance(cell, str) else cell.text for cell in row] for row in table.rows]
    return filled_table("", [column.name for column in table.columns], rows, left)


def indented(console: Console, text: str) -> None:
    """Print a line of a stacked block; a folded line continues below its own beginning."""
    told = text.lstrip()
    _hang(console, Text(" " * (2 + len(text) - len(told))), Text(told))


def _hang(console: Console, margin: Text, text: Text) -> None:
    """Print the text beside its margin, folded to the rest of the width."""
    for line in _folded(_tied(text), max(1, console.width - margin.cell_len)).split("\n", allow_blank=True):
        console.print(margin + line, soft_wrap=True)
        margin = Text(" " * margin.cell_len)


def spare_columns(console: Console, table: Table) -> int:
    """Return the columns left beside a table at its preferred width; below 0 the table does not fit."""
    unlimited = console.options.update(max_width=_ANY_WIDTH)
    return console.width - console.measure(table, options=unlimited).maximum


def breaks_words(console: Console, table: Table) -> bool:
    """True if the table is too wide for the console even with each cell folded between its words."""
    room = spare_columns(console, table)
    for column in table.columns:
        cells = [str(cell) for cell in (column.header, *column.cells)]
        words = cells if column.no_wrap else [word for cell in cells for word in cell.split()]
        room += max(map(cell_len, cells)) - max(map(cell_len, words))
    return room < 0


def headline(console: Console, sentences: Iterable[str]) -> None:
    """Print the answer with its first sentence emphasised."""
    for number, sentence in enumerate(sentences):
        say(console, sentence, "" if number else "bold")


def facts(console: Console, pairs: Iterable[tuple[str, str]], warnings: Iterable[str] = ()) -> None:
    """Print sentences with their labels, and warnings below them."""
    for label, sentence in pairs:
        fact(console, label, sentence)
    for warning in warnings:
        fact(console, "warning", warning, "yellow")


def table_or_blocks(
    console: Console, title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str]
) -> None:
    """Print a table if it fits, with the columns `left` aligned left; else one block per row, below its first cell."""
    rows = list(rows)
    shown = filled_table(title, headings, rows, left)
    if spare_columns(console, shown) >= 0:
        console.print(shown)
        return
    if title:
        say(console, title, "italic")
    for name, *cells in rows:
        console.print(Text(f"  {name}", style="bold"))
        indented(console, f"  {', '.join(f'{h} {cell}' for h, cell in zip(headings[1:], cells, strict=True))}")


def basis(console: Console, note: str, pairs: Iterable[tuple[str, str]], warnings: Iterable[str]) -> None:
    """Print the meaning of the columns, and below it the basis of the record."""
    console.print()
    say(console, note, "dim")
    console.print()
    facts(console, pairs, warnings)
