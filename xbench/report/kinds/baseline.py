"""Views of records that later checks use: a baseline, and the noise floor of a machine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from rich.console import Console

from xbench.records import Baseline, Environment, Label, LaunchPair, Measurement, Noise, Regression, WorkloadRecord
from xbench.report import markup, sentences
from xbench.report import regression_sentences as told
from xbench.report.charts.forest import floors_figure, floors_table, noise_labels
from xbench.report.charts.launches import launches_over_time, pairs_over_time
from xbench.report.console import facts, filled_table, say
from xbench.report.page.common_sections import environment_section, label_badge, made_at
from xbench.report.page.model import Badge, Cell, Section, Table, columns
from xbench.report.view import Case, Detail, Row, View, fields
from xbench.text import and_of, counted

S = TypeVar("S", bound=Baseline | Noise)


class StoredView(View[S]):
    """Measurements of one side, kept for later checks."""

    cut_short = "it ended early"
    aftermath = ""

    def title(self) -> str:
        return f"{and_of([check.name for check in self.record.suite.checks])}, for later checks"

    def subtitle(self) -> str:
        return f"{made_at(self.record.created)} · made on {self.record.side.environment.hostname}"

    def answer(self) -> list[str]:
        labels = list(self.labels())
        return [*self.headline(), f"Its figures are {and_of(labels)}." if labels else "Nothing was measured."]

    def failures(self) -> list[str]:
        return [told.failure_line(failure, sides=False) for failure in self.record.failures]

    def environment(self) -> Environment:
        return self.record.side.environment

    def environment_sections(self) -> list[Section]:
        side = self.record.side
        source = ("source", told.source(side))
        return [environment_section(side.environment, source, *workload_facts(side.workloads))]

    @abstractmethod
    def grid(self) -> tuple[str, list[str], list[list[str]], tuple[str, ...]]:
        """Return title, headings and rows of the table, and the columns that are aligned left."""

    def draw(self, console: Console, detail: Detail) -> None:
        record = self.record
        say(console, self.headline()[0], "bold")
        self.draw_incomplete(console)
        for failure in self.failures():
            say(console, failure, "bold red")
        console.print()
        console.print(filled_table(*self.grid()))
        measured = ("measured", told.side_line(record.side))
        made = ("made by", f"xbench {record.xbench}: {record.command}")
        facts(console, [*workload_facts(record.side.workloads), measured, made], record.warnings)

    def markdown(self) -> list[str]:
        record = self.record
        _, headings, rows, _ = self.grid()
        made = [("measured", told.side_line(record.side)), ("command", record.command)]
        return [
            f"### {self.name} of {markup.code(record.machine)}{self.origin()}",
            markup.quoted(self.incomplete()),
            markup.bullets(self.failures(), bold=True),
            markup.table(headings, rows),
            markup.bullets(f"warning: {warning}" for warning in record.warnings),
            markup.details("How it was measured", markup.facts([*workload_facts(record.side.workloads), *made])),
        ]

    def origin(self) -> str:
        """Say what the record was made from, as the end of a title."""
        return ""

    def markdown_command(self) -> str:
        return ""

    def cases(self, strict: bool) -> list[Case]:
        group = f"{self.record.kind} of {self.record.machine}"
        failed = zip(self.record.failures, self.failures(), strict=True)
        return [
            *(Case(group, name, message=said) for name, said in self.measured()),
            *(Case(group, f"{failure.check}/{failure.mode or 'all modes'}", status="error", message=said)
              for failure, said in failed),
        ]  # fmt: skip

    @abstractmethod
    def measured(self) -> list[tuple[str, str]]:
        """Return the name of each measured case, and its figure in words."""


class BaselineView(StoredView[Baseline]):
    """Baseline that `regress check` without `--base` compares with."""

    name = "Baseline"

    def headline(self) -> list[str]:
        machine = "any machine" if self.record.machine == "any" else self.record.machine
        asked, measured = len(self.record.suite.cases()), len(told.baseline_rows(self.record))
        cases = counted(asked, "case") if measured == asked else f"{measured} of {counted(asked, 'case')}"
        return [f"Baseline of {cases} for {machine}."]

    def labels(self) -> list[Label]:
        launched = (one for launch in self.record.launches for one in launch)
        return sorted({one.label for one in (*self.record.side.measurements, *launched)})

    def grid(self) -> tuple[str, list[str], list[list[str]], tuple[str, ...]]:
        rows = [
            [row.name, told.value(row.median, row.unit), row.launches, row.label, row.floor]
            for row in told.baseline_rows(self.record)
        ]
        headings = ["case", "median", "launches", "label", "noise floor"]
        return "Measured", headings, rows, ("case", "label", "noise floor")

    def sections(self) -> list[Section]:
        launches = launches_over_time(self.record)
        return [
            Section("measured", "What was measured", [baseline_table(self.record)]),
            Section("launches", "Every launch", [launches] if launches is not None else []),
        ]

    def tables(self) -> dict[str, list[Row]]:
        record, of = self.record, fields(self.record, "created", "complete")
        once = [_measurement(one, of, None, "base", "deterministic") for one in record.side.measurements]
        timed = [
            _measurement(one, of, number, "base", "baseline")
            for number, launch in enumerate(record.launches)
            for one in launch
        ]
        return {"launches": [*once, *timed], "failures": failure_rows(record)}

    def measured(self) -> list[tuple[str, str]]:
        rows = told.baseline_rows(self.record)
        return [(row.name, f"{told.value(row.median, row.unit)} ({row.label})") for row in rows]


class NoiseView(StoredView[Noise]):
    """Noise floor of each case on this machine, and the thresholds that follow."""

    name = "Noise floor"

    def headline(self) -> list[str]:
        return [f"{self.name} of {self.record.machine}{self.origin()}."]

    def labels(self) -> list[Label]:
        return noise_labels(self.record)

    def grid(self) -> tuple[str, list[str], list[list[str]], tuple[str, ...]]:
        rows = [list(row) for row in told.noise_rows(self.record)]
        return told.FLOORS, ["case", "noise floor", "least threshold", "label"], rows, ("case", "noise floor", "label")

    def origin(self) -> str:
        return f", from {counted(len(self.record.pairs), 'A/A pair')}"

    def sections(self) -> list[Section]:
        pairs = pairs_over_time("Every A/A pair over time", "Both are the same code.", self.record.pairs)
        return [
            Section("floors", "Noise floors", [floors_figure(self.record) or floors_table(self.record)]),
            Section("pairs", "Every pair", [pairs] if pairs is not None else []),
        ]

    def tables(self) -> dict[str, list[Row]]:
        record, of = self.record, fields(self.record, "created", "complete")
        labels = {one.case: one.label for pair in record.pairs for one in pair.base}
        floors = [
            {
                **of,
                "label": labels.get(floor.case),
                **fields(floor, "check", "mode", "metric"),
                "noise_floor_share": floor.floor,
                **fields(floor, "measured_pairs", "checked_pairs"),
            }
            for floor in record.floors
        ]
        launches = list(launch_rows(record.pairs, of, "A/A"))
        return {"floors": floors, "launches": launches, "failures": failure_rows(record)}

    def measured(self) -> list[tuple[str, str]]:
        return [
            (name, f"noise floor {floor}" if label == "–" else f"noise floor {floor} ({label})")
            for name, floor, _, label in told.noise_rows(self.record)
        ]


def baseline_table(record: Baseline) -> Table:
    """Return the baseline's cases, and the cases of the suite that it lacks."""
    found = told.baseline_rows(record)
    rows: list[list[Cell]] = [
        [row.name, told.value(row.median, row.unit), row.launches, row.floor, label_badge(row.label)] for row in found
    ]
    measured = {row.name for row in found}
    rows += [
        [told.name_of(case), Badge("not measured", "inconclusive"), "–", "–", "–"]
        for case in record.suite.cases()
        if told.name_of(case) not in measured
    ]
    shown = columns(("case", "median", "launches", "noise floor", "label"), ("case", "noise floor", "label"))
    note = "Median: over launches. A case without launches is deterministic: one look decides."
    return Table("What later checks are held against", shown, rows, note, opened=True)


def workload_facts(workloads: Mapping[str, WorkloadRecord], what: str = "workload") -> list[tuple[str, str]]:
    """Return the workload of each check, by the check's name."""
    return [(what, f"{name}: {sentences.workload_line(one)}") for name, one in workloads.items()]


def failure_rows(record: Baseline | Noise | Regression) -> list[Row]:
    """Return the tidy table of failures."""
    of = fields(record, "created", "complete")
    return [{**of, "label": None, **failure.model_dump()} for failure in record.failures]


def launch_rows(pairs: Iterable[LaunchPair], of: Row, phase: str) -> Iterator[Row]:
    """Return one row per case, side and pair, in the order of time."""
    for pair in pairs:
        sides = {"base": pair.base, "head": pair.head}
        for side in sorted(sides, key=lambda side: side != pair.first):
            for one in sides[side]:
                yield _measurement(one, of, pair.number, side, phase)


def _measurement(one: Measurement, of: Row, pair: int | None, side: str, phase: str) -> Row:
    return {
        **of,
        "label": one.label,
        "phase": phase,
        "pair": pair,
        "side": side,
        **fields(one, "check", "mode", "metric", "value", "unit"),
        "samples": len(one.samples),
    }
