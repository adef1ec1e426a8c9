"""View of a record: the parts that a format may show of any kind.

Each kind of record has one view, in `kinds`. A format reads the parts that it shows and does not depend on the kind.
Only the view holds the text, figures and cases of its kind.
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
    """One JUnit case: its address `group` and `name`, a `message` of one sentence, and a `text` of any length.

    `time_s` is the quantity of the case, a step for example, and not the time of the measurement. None is shown as 0.
    """

    group: str
    name: str
    time_s: float | None = None
    status: Status = "passed"
    message: str = ""
    text: str = ""


@dataclass(frozen=True)
class Detail:
    """Amount of detail on a terminal. `verbose` shows every table and note; `path` is the record's path in commands."""

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
    """Return the columns for an interval in a tidy table: 'step_low_s' and 'step_high_s' for 'step' in '_s'."""
    low, high = interval if interval is not None else (None, None)
    return {f"{name}_low{unit}": low, f"{name}_high{unit}": high}


def fields(one: object, *names: str) -> Row:
    """Return columns of a tidy table with the names and values of attributes."""
    return {name: getattr(one, name) for name in names}


class View(ABC, Generic[R]):
    """View of one record, for any format."""

    name: ClassVar[str]
    """Name of the kind on its page."""
    cut_short: ClassVar[str] = "it ended before everything was measured"
    """Reason given for an incomplete record that has no error."""
    aftermath: ClassVar[str] = " What follows is what had been measured by then."
    keeps_empty_sections: ClassVar[bool] = False

    def __init__(self, record: R) -> None:
        self.record = record

    @abstractmethod
    def title(self) -> str:
        """Title of the page."""

    @abstractmethod
    def headline(self) -> list[str]:
        """Return the answer. Its first sentence is the largest text of a report."""

    @abstractmethod
    def labels(self) -> Sequence[Label]:
        """Return the labels of the figures: real, emulated or simulated."""

    @abstractmethod
    def sections(self) -> list[Section]:
        """Return the sections of the page, without the common ones at its end."""

    @abstractmethod
    def tables(self) -> dict[str, Table]:
        """Return tidy tables by name, the main one first. Rows of a table share columns; None is a missing value."""

    @abstractmethod
    def cases(self, strict: bool) -> list[Case]:
        """Return the JUnit cases, modes in their order. With `strict`, a case that was not judged is a failure."""

    @abstractmethod
    def draw(self, console: Console, detail: Detail) -> None:
        """Print the record on a terminal."""

    @abstractmethod
    def markdown(self) -> list[str]:
        """Return the parts of a Markdown summary, without the command at its end. Empty parts are omitted."""

    def subtitle(self) -> str:
        """Say when and on which machine the record was made."""
        where = self.environment()
        return moment(self.record.created) + (f" · {where.hostname}" if where is not None else "")

    def incomplete(self) -> str | None:
        """Say that the run ended early, and why; None for a complete one."""
        if self.record.complete:
            return None
        why = getattr(self.record, "error", None) or self.cut_short
        return f"INCOMPLETE: {why.rstrip('.')}.{self.aftermath}"

    def failures(self) -> list[str]:
        """Return one sentence for each part that failed."""
        return []

    def advice(self, path: str = RECORD) -> list[Advice]:
        """Return the advice, the most important first; `path` is the record's path in commands."""
        return []

    def paste(self) -> Sequence[Block]:
        """Return the lines to paste, for the top of the page."""
        return []

    def trace(self) -> StepTrace:
        """Return the steps to draw; none by default."""
        return StepTrace([], [], {})

    def warnings(self) -> list[str]:
        """Return sentences on disturbances of the run."""
        found: list[str] = getattr(self.record, "warnings", [])
        return found

    def environment(self) -> Environment | None:
        """Return the machine of the record; None if nothing was measured."""
        where: Environment | None = getattr(self.record, "environment", None)
        return where

    def commands(self) -> list[str]:
        """Return the commands that make the record again."""
        return [self.record.command]

    def properties(self) -> dict[str, str]:
        """Return the facts for each JUnit suite."""
        where = self.environment()
        return {"machine": environment_line(where)} if where is not None else {}

    def environment_sections(self) -> list[Section]:
        """Return the section about the machine, if there is one."""
        where = self.environment()
        return [environment_section(where)] if where is not None else []

    def ending(self) -> list[Section]:
        """Return the sections at the end of every page."""
        return [*self.environment_sections(), *warnings_section(self.warnings()), command_section(*self.commands())]

    def page(self) -> Page:
        """Return the whole page, before it becomes HTML."""
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
        """Return the headline of the page."""
        return self.headline()

    def markdown_command(self) -> str:
        """Return the folded command at the end of a Markdown summary."""
        return markup.details("Command", markup.fenced(self.record.command, "sh"))
