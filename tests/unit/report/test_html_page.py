"""The HTML page and the notebook's cell: whole, self-contained, the same every time; a record's text is only text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import sample_predictions as predicted
import sample_records as made
from sample_kinds import EVERY, convergence, tuned

from xbench.errors import UsageError
from xbench.records import AnyRecord, load
from xbench.report.formats.html import contents, own_file, page, render
from xbench.report.page.model import figures

IN_BASIC_BUNDLE = {"bar", "pie", "scatter"}
VOID = {"meta", "br", "link", "img", "hr", "input"}


class Reader(HTMLParser):
    """What a browser would find: open elements that were closed in order, ids, references, and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.wrong: list[str] = []
        self.data: list[object] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.elements.append((tag, found))
        if found.get("id"):
            self.ids.append(str(found["id"]))
        self.links += [str(found[name]) for name in ("href", "src", "action", "data") if found.get(name)]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            if self.elements[-1][1].get("type") == "application/json":
                self.data = json.loads(data)
        elif self.open and self.open[-1] != "style" and data.strip():
            self.text.append(" ".join(data.split()))


@pytest.mark.parametrize("kind", EVERY)
def test_a_page_is_well_formed_fetches_nothing_and_has_every_plot_in_words(kind: str) -> None:
    shown = Reader(render(EVERY[kind]()))
    assert (shown.wrong, shown.open) == ([], [])
    assert len(shown.ids) == len(set(shown.ids))
    assert ("html", {"lang": "en"}) in shown.elements
    assert [tag for tag, _ in shown.elements].count("h1") == 1
    assert [link for link in shown.links if not link.startswith("#")] == []
    assert {link[1:] for link in shown.links} <= set(shown.ids)
    policy = next(found["content"] for tag, found in shown.elements if found.get("http-equiv"))
    assert str(policy).startswith("default-src 'none';")
    plots = [found for _, found in shown.elements if found.get("role") == "img"]
    assert all(found["aria-label"] for found in plots)
    assert len(plots) == len(shown.data)


@pytest.mark.parametrize("kind", EVERY)
def test_figures_are_what_plotly_takes(kind: str) -> None:
    from plotly import graph_objects

    for figure in figures(contents([EVERY[kind]()])):
        assert figure.labels, figure.key
        assert figure.table is not None, f"{figure.key} has no equivalent in text"
        assert figure.table.rows, figure.key
        assert {len(row) for row in figure.table.rows} == {len(figure.table.columns)}, figure.key
        assert {trace["type"] for trace in figure.traces} <= IN_BASIC_BUNDLE, figure.key
        graph_objects.Figure(data=_with_colours(figure.traces), layout=_with_colours(figure.layout))


def test_the_page_s_plotly_is_the_basic_bundle_of_the_version_that_figures_are_held_to() -> None:
    from plotly.offline import get_plotlyjs_version

    licence = own_file("plotly-basic.LICENSE.txt")
    assert licence.startswith("MIT License\n\nCopyright (c) 2016-2024 Plotly Technologies Inc.\n")
    text = render(made.comparison())
    assert f"* plotly.js (basic - minified) v{get_plotlyjs_version()}\n" in text
    assert "* Licensed under the MIT license\n" in text
    assert len(text.encode()) < 1_500_000


def _with_colours(value: object) -> object:
    """The names of colours that the page gives, as some colour."""
    if isinstance(value, dict):
        return {name: _with_colours(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_colours(one) for one in value]
    return "#123456" if isinstance(value, str) and re.fullmatch(r"--[a-z0-9-]+", value) else value


@pytest.mark.parametrize("kind", EVERY)
def test_colours_are_in_the_style(kind: str) -> None:
    text = render(EVERY[kind]())
    style = text[text.index("<style>") : text.index("</style>")]
    light, dark = style.split(':root[data-theme="dark"]')
    for name in set(re.findall(r'"(--[a-z0-9-]+)"', text[text.index('id="figures"') :])):
        assert f"{name}:" in light.split("}")[0], name
        assert f"{name}:" in dark.split("}")[0], name


def test_the_same_record_makes_the_same_bytes() -> None:
    assert render(made.comparison()) == render(made.comparison())


def test_a_failed_mode_is_shown_without_a_time() -> None:
    bars = next(figure for figure in figures(contents([made.troubled()])) if figure.key == "time-per-sample")
    assert sorted(bars.traces[0]["y"]) == ["ddp", "optimal"]
    assert set(bars.layout["yaxis"]["categoryarray"]) == {"ddp", "optimal", "mgwfbp", "single"}
    assert "INCOMPLETE: " in " ".join(Reader(made.troubled()._repr_html_()).text)


def test_a_comparison_without_a_single_time_is_still_a_page() -> None:
    failed = [
        result.model_copy(update={"status": "failed", "error": "out of memory"})
        for result in made.comparison().modes.values()
    ]
    read = Reader(render(made.comparison(failed)))
    assert read.wrong == []
    assert sum("out of memory" in line for line in read.text) >= len(failed)
    assert "time-per-sample" not in read.ids
    assert "No mode was measured" in render(made.comparison([], jobs=[], bounds=None, cost_model=None))


def without_steps(*names: str) -> AnyRecord:
    record = made.comparison()
    empty: dict[str, list[float]] = {name: [] for name in names}
    return record.model_copy(update={"samples": [sample.model_copy(update=empty) for sample in record.samples]})


BARE: dict[str, Callable[[], AnyRecord]] = {
    "profile": lambda: made.profile().model_copy(
        update={"layers": [], "step": None, "cost_model": None, "bounds": None, "plans": {}, "samples": {}}
    ),
    "scaling": lambda: predicted.scaling().model_copy(update={"points": [], "findings": [], "links": []}),
    "convergence": lambda: convergence(
        curves=[],
        modes={
            name: mode.model_copy(update={"status": "failed", "error": "no data", "accuracy": None, "test_loss": None})
            for name, mode in convergence().modes.items()
        },
    ),
    "tuned": lambda: tuned(tried={}, ratio=None, buckets=None),
    "blocks without steps": lambda: without_steps("steps_s", "warmup_s"),
    "only warm-up": lambda: without_steps("steps_s"),
    "one mode, no plan": lambda: made.comparison([made.mode_result("wfbp", 0.5, None, "faster")], jobs=[], bounds=None),
}


@pytest.mark.parametrize("kind", BARE)
def test_what_a_record_has_not_is_left_out(kind: str) -> None:
    record = BARE[kind]()
    read = Reader(render(record))
    assert read.wrong == []
    assert len(read.ids) == len(set(read.ids))
    for figure in figures(contents([record])):
        assert any(len(trace["x"]) for trace in figure.traces), f"{figure.key} is empty"


def test_several_records_need_to_compare() -> None:
    with pytest.raises(UsageError, match="number 2 is a profile"):
        page([made.comparison(), made.profile()])
    with pytest.raises(UsageError, match="no mode in common"):
        page([made.comparison(), made.paired()])
    with pytest.raises(UsageError, match="no result"):
        page([])


# --- a notebook shows the answer and one short table ------------------------------------------------------------------


@pytest.mark.parametrize("kind", EVERY)
def test_a_cell_is_well_formed_and_holds_only_text_and_a_table(kind: str) -> None:
    text = EVERY[kind]()._repr_html_()
    found = Reader(text)
    assert (found.wrong, found.open, found.links) == ([], [], [])
    tags = {tag for tag, _ in found.elements}
    assert tags <= {"div", "p", "b", "br", "table", "thead", "tbody", "tr", "th", "td"}
    assert "table" in tags
    assert {name for _, given in found.elements for name in given} <= {"class", "style"}
    assert len(text) < 16_000


def test_a_cell_shows_the_answer_and_the_modes() -> None:
    record = load(Path(__file__).parents[3] / "results" / "resnet18-rivals-1gbit.json")
    found = Reader(record._repr_html_())
    assert found.text[:2] == [
        "resnet18 on shaped:hosts=2,rate=1gbit",
        "2026-11-22 04:54 UTC · vm · reference ddp · real",
    ]
    assert found.text[2].startswith("dear is faster: 21.2 % less time per sample than ddp")
    text = " ".join(found.text)
    for cells in ("dear 25.9 ms 25.9 ms – 26.0 ms 0.788 [0.761, 0.815] faster 4 real", "ddp 32.9 ms"):
        assert cells in text


def test_a_long_table_says_how_many_rows_it_leaves_out() -> None:
    record = predicted.scaling()
    assert len(record.points) == 20
    assert "more rows" not in record._repr_html_()
    text = record.model_copy(update={"points": [*record.points, *record.points[:4]]})._repr_html_()
    assert len(re.findall("<tr>", text)) == 21
    assert "<p>4 more rows are in the record.</p>" in text
