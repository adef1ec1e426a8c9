"""The page of what `xbench tune` kept: the schedule to use, what was tried, and the lines to paste."""

from __future__ import annotations

from xbench.records import Ratio, Tuned
from xbench.report.advice import advice
from xbench.report.charts.axes import named, plain, rounded
from xbench.report.kinds.tuned import kept_sentence, snippet
from xbench.report.page.common_sections import (
    command_section,
    fabric_pairs,
    following,
    label_badge,
    moment,
    workload_pair,
)
from xbench.report.page.model import Badge, Block, Cell, Code, Column, Facts, Figure, Page, Section, Sentences, Table

KEPT = "tuned.json"
"""What the lines to paste call the kept file, whose own path the record does not know."""


def tuned_page(record: Tuned) -> Page:
    """The winner first."""
    buckets = "as DDP forms them" if record.buckets is None else str(len(record.buckets))
    carrier = f", carried by {record.carrier}" if record.carrier is not None else ""
    pairs = [
        workload_pair(record.workload),
        ("buckets", buckets + carrier),
        ("margin", f"a gain of at least {100 * record.margin:g} % was taken to be worth a change"),
        *fabric_pairs(record.fabric),
        ("device", "CPU" if record.device == "cpu" else record.device),
        ("made with", f"xbench {record.xbench}, torch {record.torch or 'not installed'}"),
        ("rests on", record.record),
    ]
    tried = tried_figure(record)
    paste: list[Block] = [Code(snippet(record, KEPT), "the lines to paste")]
    if KEPT in snippet(record, KEPT):
        paste = [Sentences([f"Paste this, with the path of the kept file in place of {KEPT}:"]), *paste]
    paste += following(advice(record))
    return Page(
        kind="Tuned",
        title=f"{record.workload.title} on {record.fabric.spec}",
        subtitle=moment(record.created),
        labels=[record.label],
        answer=[kept_sentence(record), f"Times are {record.label}."],
        paste=paste,
        sections=[
            Section("tried", "What was tried", [tried] if tried else [Sentences(["No candidate was timed."])]),
            Section("basis", "What it rests on", [Facts(pairs)]),
            command_section(record.command),
        ],
    )


def tried_figure(record: Tuned) -> Figure | None:
    """A ratio to the reference a candidate, best first, with its interval. None where none was timed."""
    tried = sorted(record.tried.items(), key=lambda pair: pair[1].value)
    if not tried:
        return None
    names = [named(mode) for mode, _ in tried]
    rows: list[list[Cell]] = [
        [mode, ratio_words(ratio), Badge(ratio.verdict, ratio.verdict), label_badge(record.label)]
        for mode, ratio in tried
    ]
    return Figure(
        key="ratios",
        title=f"Time per sample over that of {record.reference}",
        labels=[record.label],
        told="Left of 1 is faster. Whiskers are 95 % confidence intervals.",
        traces=[ratio_points(names, [plain(mode) for mode, _ in tried], [ratio for _, ratio in tried])],
        layout={
            "xaxis": {"title": {"text": f"ratio to {plain(record.reference)}"}},
            "yaxis": {"categoryorder": "array", "categoryarray": names, "range": [len(names) - 0.5, -0.5]},
            "shapes": [{"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1,
                        "line": {"color": "--ink", "dash": "dot", "width": 1.5}}],
            "margin": {"t": 8},
        },
        height=80 + 36 * len(names),
        table=Table(
            "Ratios in figures",
            [Column("mode", figures=False), Column("ratio [95 % CI]"), Column("verdict", figures=False),
             Column("label", figures=False)],
            rows,
            opened=True,
        ),
    )  # fmt: skip


def ratio_points(names: list[str], said: list[str], ratios: list[Ratio]) -> dict[str, object]:
    """A point with whiskers for each ratio."""
    return {
        "type": "scatter", "mode": "markers", "y": names, "x": [rounded(ratio.value) for ratio in ratios],
        "error_x": {
            "type": "data", "symmetric": False, "color": "--ink", "thickness": 1.5, "width": 5,
            "array": [rounded(max(0.0, ratio.ci95[1] - ratio.value)) for ratio in ratios],
            "arrayminus": [rounded(max(0.0, ratio.value - ratio.ci95[0])) for ratio in ratios],
        },
        "marker": {"color": "--c1", "size": 11},
        "customdata": [f"<b>{name}</b><br>{ratio_words(ratio)}: {ratio.verdict}"
                       for name, ratio in zip(said, ratios, strict=True)],
        "hovertemplate": "%{customdata}<extra></extra>",
    }  # fmt: skip


def ratio_words(ratio: Ratio) -> str:
    """'0.891 [0.872, 0.910]'."""
    low, high = ratio.ci95
    return f"{ratio.value:.3f} [{low:.3f}, {high:.3f}]"
