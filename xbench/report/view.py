"""View of a record: what a format may ask of any kind.

Each kind of record has one view, in `kinds`. A format walks it: it asks for the parts that it lays out, and knows no
kind. The words, figures and cases of a kind stand in its view alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar

from rich.console import Console

from xbench.records import AnyRecord, Environment, Label
from xbench.report import markup
from xbench.report.advice import RECORD, Advice
from xbench.report.charts.trace import Process
from xbench.report.page.common_sections import command_section, environment_section, moment, warnings_section
from xbench.report.page.model import Block, Page, Section
from xbench.report.sentences import environment_line

R = TypeVar("R", bound=AnyRecord)

Row = dict[str, Any]
Table = list[Row]
Status = Literal["passed", "failed", "skipped", "error"]


@dataclass(frozen=True)
class Case:
    """One line of the table: `group` and `name` are its address, `message` one sentence, `text` as long as it needs.

    `time_s` is what the case is about, a step for example, and not how long it took to find out; None is shown as 0.
    """

    group: str
    name: str
    time_s: float | None = None
    status: Status = "passed"
    message: str = ""
    text: str = ""


@dataclass(frozen=True)
class Detail:
    """How much a terminal shows. `verbose`: every table and note; `path`: the record's, for commands."""

    verbose: bool = False
    all_layers: bool = False
    path: str = RECORD


@dataclass(frozen=True)
class StepTrace:
    """Recorded and predicted steps to draw, notes on them, and facts of the run."""

    processes: Sequence[Process]
    notes: Sequence[str]
    facts: dict[str, str]


def ends(name: str, interval: tuple[float, float] | None, unit: str = "") -> Row:
    """Columns of a tidy table for the ends of an interval: 'step_low_s' and 'step_high_s' of 'step' in '_s'."""
    low, high = interval if interval is not None else (None, None)
    return {f"{name}_low{unit}": low, f"{name}_high{unit}": high}


def fields(one: object, *names: str) -> Row:
    """Columns of a tidy table that have the names and values of attributes."""
    return {name: getattr(one, name) for name in names}


class View(ABC, Generic[R]):
    """One record, ready for any format."""

    name: ClassVar[str]
    """Name of the kind on its page."""
    cut_short: ClassVar[str] = "it ended before everything was measured"
    """Why the record is incomplete, where it does not say so itself."""
    aftermath: ClassVar[str] = " What follows is what had been measured by then."
    keeps_empty_sections: ClassVar[bool] = False

    def __init__(self, record: R) -> None:
        self.record = record

    @abstractmethod
    def title(self) -> str:
        """Title of the page."""

    @abstractmethod
    def headline(self) -> list[str]:
        """The answer: its first sentence is the largest text of a report."""

    @abstractmethod
    def labels(self) -> Sequence[Label]:
        """Labels of the figures: real, emulated or simulated."""

    @abstractmethod
    def sections(self) -> list[Section]:
        """Sections of the page, in front of those that every page ends with."""

    @abstractmethod
    def tables(self) -> dict[str, Table]:
        """Tidy tables by name, the main one first. Rows of one table have the same columns; None is a missing value."""

    @abstractmethod
    def cases(self, strict: bool) -> list[Case]:
        """JUnit cases, modes in their order. `strict`: what a check could not judge is a failure."""

    @abstractmethod
    def draw(self, console: Console, detail: Detail) -> None:
        """Print the record on a terminal."""

    @abstractmethod
    def markdown(self) -> list[str]:
        """Parts of a Markdown summary, in front of the command; empty ones are left out."""

    def subtitle(self) -> str:
        """When and where the record was made."""
        where = self.environment()
        return moment(self.record.created) + (f" · {where.hostname}" if where is not None else "")

    def incomplete(self) -> str | None:
        """Say that the run ended early, and why; None for a whole one."""
        if self.record.complete:
            return None
        why = getattr(self.record, "error", None) or self.cut_short
        return f"INCOMPLETE: {why.rstrip('.')}.{self.aftermath}"

    def failures(self) -> list[str]:
        """One sentence for each part that failed."""
        return []

    def advice(self, path: str = RECORD) -> list[Advice]:
        """What to do next, the most important first; `path` is the record's in commands."""
        return []

    def paste(self) -> Sequence[Block]:
        """Lines to paste, beside the headline of the page."""
        return []

    def trace(self) -> StepTrace:
        """Steps to draw; none by default."""
        return StepTrace([], [], {})

    def warnings(self) -> list[str]:
        """Sentences on what disturbed the run."""
        found: list[str] = getattr(self.record, "warnings", [])
        return found

    def environment(self) -> Environment | None:
        """Machine that the record was made on; None where nothing was measured."""
        where: Environment | None = getattr(self.record, "environment", None)
        return where

    def commands(self) -> list[str]:
        """Commands that make the record again."""
        return [self.record.command]

    def properties(self) -> dict[str, str]:
        """Facts that stand in each JUnit suite."""
        where = self.environment()
        return {"machine": environment_line(where)} if where is not None else {}

    def environment_sections(self) -> list[Section]:
        """Section about the machine, if there is one."""
        where = self.environment()
        return [environment_section(where)] if where is not None else []

    def ending(self) -> list[Section]:
        """Sections that every page ends with."""
        return [*self.environment_sections(), *warnings_section(self.warnings()), command_section(*self.commands())]

    def page(self) -> Page:
        """The whole HTML page, before any of it is HTML."""
        return Page(
            kind=self.name,
            warnings=len(self.warnings()),
            title=self.title(),
            subtitle=self.subtitle(),
            labels=self.labels(),
            answer=self.answer(),
            incomplete=self.incomplete(),
            failures=self.failures(),
            paste=self.paste(),
            sections=[one for one in (*self.sections(), *self.ending()) if one.blocks or self.keeps_empty_sections],
        )

    def answer(self) -> list[str]:
        """The headline of the page."""
        return self.headline()

    def markdown_command(self) -> str:
        """The folded command that a Markdown summary ends with."""
        return markup.details("Command", markup.fenced(self.record.command, "sh"))
