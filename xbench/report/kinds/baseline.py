"""View of a baseline, which later checks use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rich.console import Console

from xbench.records import Baseline, Environment, Label, LaunchPair, Measurement, Regression, WorkloadRecord
from xbench.report import markup, sentences
from xbench.report import regression_sentences as told
from xbench.report.charts.forest import floors_figure, floors_table, noise_labels
from xbench.report.charts.launches import pairs_over_time
from xbench.report.console import facts, filled_table, say
from xbench.report.page.common_sections import environment_section, label_badge, made_at
from xbench.report.page.model import Cell, Section, Table, columns
from xbench.report.view import Case, Detail, Row, View, fields
from xbench.text import and_of, counted

COUNTS = ("case", "value", "label")


class BaselineView(View[Baseline]):
    """Counts that `regress check` without `--base` compares with, and the noise floors of a machine."""

    name = "Baseline"
    cut_short = "it ended early"
    aftermath = ""

    def title(self) -> str:
        return f"{and_of([check.name for check in self.record.suite.checks])}, for later checks"

    def subtitle(self) -> str:
        return f"{made_at(self.record.created)} · made on {self.record.side.environment.hostname}"

    def headline(self) -> list[str]:
        record = self.record
        machine = "any machine" if record.machine == "any" else record.machine
        counts = [counted(len(record.side.measurements), "case")] if record.side.measurements else []
        floors = [f"noise floors from {counted(len(record.pairs), 'A/A pair')}"] if record.pairs else []
        return [f"Baseline of {machine}: {and_of([*counts, *floors] or ['nothing was measured'])}."]

    def answer(self) -> list[str]:
        labels = list(self.labels())
        return [*self.headline(), *([f"Its figures are {and_of(labels)}."] if labels else [])]

    def labels(self) -> list[Label]:
        return sorted({*(one.label for one in self.record.side.measurements), *noise_labels(self.record)})

    def failures(self) -> list[str]:
        return [told.failure_line(failure, sides=False) for failure in self.record.failures]

    def environment(self) -> Environment:
        return self.record.side.environment

    def environment_sections(self) -> list[Section]:
        side = self.record.side
        source = ("source", told.source(side))
        return [environment_section(side.environment, source, *workload_facts(side.workloads))]

    def draw(self, console: Console, detail: Detail) -> None:
        record = self.record
        say(console, self.headline()[0], "bold")
        self.draw_incomplete(console)
        for failure in self.failures():
            say(console, failure, "bold red")
        console.print()
        for grid in self._grids():
            console.print(filled_table(*grid))
        measured = ("measured", told.side_line(record.side))
        made = ("made by", f"xbench {record.xbench}: {record.command}")
        facts(console, [*workload_facts(record.side.workloads), measured, made], record.warnings)

    def markdown(self) -> list[str]:
        record = self.record
        made = [("measured", told.side_line(record.side)), ("command", record.command)]
        return [
            f"### {markup.plain(self.headline()[0])}",
            markup.quoted(self.incomplete()),
            markup.bullets(self.failures(), bold=True),
            *(markup.table(headings, rows) for _, headings, rows, _ in self._grids()),
            markup.bullets(f"warning: {warning}" for warning in record.warnings),
            markup.details("How it was measured", markup.facts([*workload_facts(record.side.workloads), *made])),
        ]

    def markdown_command(self) -> str:
        return ""

    def _grids(self) -> list[tuple[str, list[str], list[list[str]], tuple[str, ...]]]:
        """Return title, headings and rows of each table with any, and the columns that are aligned left."""
        counts, floors = told.count_rows(self.record), told.noise_rows(self.record)
        found = [
            ("Counts, plans and predictions", list(COUNTS), list(map(list, counts)), ("case", "label")),
            (told.FLOORS, list(told.FLOOR_COLUMNS), list(map(list, floors)), ("case", "noise floor", "label")),
        ]
        return [grid for grid in found if grid[2]]

    def sections(self) -> list[Section]:
        record, counts = self.record, told.count_rows(self.record)
        rows: list[list[Cell]] = [[case, value, label_badge(label)] for case, value, label in counts]
        table = Table("Counts, plans and predictions", columns(COUNTS, ("case", "label")), rows, opened=True)
        found = Section("counts", "What later checks are held against", [table] if rows else [])
        if not record.pairs:
            return [found]
        pairs = pairs_over_time("Every A/A pair over time", "Both are the same code.", record.pairs)
        return [
            found,
            Section("floors", "Noise floors", [floors_figure(record) or floors_table(record)]),
            Section("pairs", "Every pair", [pairs] if pairs is not None else []),
        ]

    def tables(self) -> dict[str, list[Row]]:
        record, of = self.record, fields(self.record, "created", "complete")
        once = [_measurement(one, of, None, "base", "deterministic") for one in record.side.measurements]
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
        launches = [*once, *launch_rows(record.pairs, of, "A/A")]
        return {"launches": launches, "floors": floors, "failures": failure_rows(record)}

    def cases(self, strict: bool) -> list[Case]:
        group, record = f"baseline of {self.record.machine}", self.record
        counts = [(case, f"{value} ({label})") for case, value, label in told.count_rows(record)]
        floors = [
            (case, f"noise floor {floor}" if label == "–" else f"noise floor {floor} ({label})")
            for case, floor, _, label in told.noise_rows(record)
        ]
        failed = zip(record.failures, self.failures(), strict=True)
        return [
            *(Case(group, name, message=said) for name, said in (*counts, *floors)),
            *(Case(group, f"{failure.check}/{failure.mode or 'all modes'}", status="error", message=said)
              for failure, said in failed),
        ]  # fmt: skip


def workload_facts(workloads: Mapping[str, WorkloadRecord], what: str = "workload") -> list[tuple[str, str]]:
    """Return the workload of each check, by the check's name."""
    return [(what, f"{name}: {sentences.workload_line(one)}") for name, one in workloads.items()]


def failure_rows(record: Baseline | Regression) -> list[Row]:
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
