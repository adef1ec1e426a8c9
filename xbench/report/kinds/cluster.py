"""View of `xbench cluster compare`: the answer, a table for each restart cost, and their basis.

Every number is simulated.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from xbench.records import ClusterComparison, ClusterResult, Label
from xbench.report import cluster_sentences as told
from xbench.report import console as terminal
from xbench.report import markup
from xbench.report.charts import cluster as charts
from xbench.report.page.common_sections import moment
from xbench.report.page.model import Facts, Section
from xbench.report.view import Case, Detail, Row, View, ends
from xbench.units import format_duration


class ClusterView(View[ClusterComparison]):
    """Policies of a cluster side by side."""

    name = "Cluster"
    keeps_empty_sections = True

    def title(self) -> str:
        return f"{self.record.trace.name} on {told.cluster_of(self.record)}"

    def subtitle(self) -> str:
        return moment(self.record.created)

    def headline(self) -> list[str]:
        return self.record.findings or ["Nothing was found."]

    def answer(self) -> list[str]:
        return [*self.headline(), "Everything here is simulated."]

    def labels(self) -> list[Label]:
        return ["simulated"]

    def draw(self, console: Console, detail: Detail) -> None:
        record = self.record
        terminal.headline(console, record.findings)
        left = ("policy", "placement")
        for cost_s in record.restart_costs_s:
            console.print()
            terminal.say(console, told.heading(record, cost_s), "italic")
            names = told.headings(record)
            shown = terminal.titled_table("", *((name, "left" if name in left else "right") for name in names))
            for row in told.rows(record, cost_s):
                shown.add_row(*row)
            if terminal.spare_columns(console, shown) >= 0:
                console.print(shown)
            else:
                _stacked(record, cost_s, console)
        terminal.basis(console, told.note(record), told.basis(record), record.warnings)

    def markdown(self) -> list[str]:
        record = self.record
        parts = [f"### {markup.plain(record.trace.name)} on {told.cluster_of(record)} (simulated)"]
        parts += [markup.lead(self.headline())]
        for cost_s in record.restart_costs_s:
            shown = [[markup.code(row[0]), *row[1:]] for row in told.rows(record, cost_s)]
            parts += [f"{told.costing(cost_s).capitalize()}:", markup.table(told.headings(record), shown)]
        basis = markup.details("What it rests on", markup.facts(told.basis(record)))
        return [*parts, told.note(record), basis, markup.warning_list(record.warnings)]

    def sections(self) -> list[Section]:
        record = self.record
        return [
            Section("times", "Job completion time", [charts.means(record), *charts.distributions(record)]),
            Section("time", "Over time", charts.over_time(record)),
            Section("jobs", "Who ran when", charts.gantt(record)),
            Section("basis", "What it rests on", [Facts(told.basis(record))]),
        ]

    def tables(self) -> dict[str, list[Row]]:
        record = self.record
        of = {"label": record.label, "trace": record.trace.name, "gpus": record.gpus,
              "gpus_per_host": record.gpus_per_host}  # fmt: skip
        return {
            "runs": [
                {**of, **run.model_dump(), "gap": run.jct_mean_s / run.bound_s - 1 if run.bound_s else None}
                for run in record.runs
            ],
            "results": [{**of, **_result(one)} for one in record.results],
            "curves": [
                {**of, **_setting(curve), "percentile": percentile, "jct_s": jct_s}
                for curve in record.curves
                for percentile, jct_s in enumerate(curve.jct_s)
            ],
        }

    def cases(self, strict: bool) -> list[Case]:
        group = f"{self.record.trace.name} on {self.record.gpus} GPUs (simulated)"
        found = []
        for result in self.record.results:
            placed = f", {result.placement}" if result.placement else ""
            name = f"{result.policy}, {told.costing(result.restart_s)}{placed}"
            said = f"mean job completion time {format_duration(result.jct_mean_s)} (simulated)"
            found.append(Case(group, name, result.jct_mean_s, message=said))
        return found


def _setting(one: Any) -> Row:
    return {"policy": one.policy, "restart_s": one.restart_s, "placement": one.placement}


def _result(one: ClusterResult) -> Row:
    return {
        **_setting(one),
        "jct_mean_s": one.jct_mean_s,
        **ends("jct_mean", one.jct_mean_ci95, "_s"),
        "ratio": one.ratio,
        **ends("ratio", one.ratio_ci95),
        "gap": one.gap,
        **ends("gap", one.gap_ci95),
        "gap_exact": one.gap_exact,
        "placed_ratio": one.placed_ratio,
        **ends("placed_ratio", one.placed_ratio_ci95),
        "growing": one.growing,
    }


def _stacked(record: ClusterComparison, cost_s: float, console: Console) -> None:
    for result, row in zip(told.results_at(record, cost_s), told.rows(record, cost_s), strict=True):
        columns = told.columns(record)
        judged = [told.ratio_of(result)] if told.is_compared(record) else []
        judged += [f"gap {told.gap_of(result)}"] if result.gap is not None else []
        placed = f", {result.placement}" if result.placement else ""
        console.print(Text(f"  {result.policy}{placed}", style="bold"))
        terminal.indented(console, f"  {', '.join([f'mean JCT {told.jct_of(result)}', *judged])}")
        figures = zip(columns, row[-len(columns) :], strict=True)
        terminal.indented(console, f"  {', '.join(f'{column.heading} {figure}' for column, figure in figures)}")
