"""The HTML page: whole, self-contained, the same every time; every text of a record is text on it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import pytest
import sample_gpus as gpus
import sample_predictions as predicted
import sample_records as made
from test_convergence_report import convergence
from test_tuned_report import tuned

from xbench.errors import UsageError
from xbench.records import AnyRecord, Contention, ContentionPoint, Job, load
from xbench.report import FORMATS
from xbench.report.formats.html import contents, own_file, page, render
from xbench.report.page.model import figures

GOLDEN = Path(__file__).parents[2] / "golden"
MADE: dict[str, Callable[[], AnyRecord]] = {
    "comparison": made.comparison,
    "troubled": made.troubled,
    "paired": made.paired,
    "gpus": gpus.on_gpus,
    "two workloads": lambda: made.paired().model_copy(update={"jobs": [_job("resnet18"), _job("densenet121")]}),
    "profile": made.profile,
    "scaling": predicted.scaling,
    "validation": predicted.validation,
    "convergence": convergence,
    "tuned": tuned,
    **{
        kind: partial(load, GOLDEN / f"{kind}-v1.json")
        for kind in ("regression", "baseline", "noise", "cluster", "live", "restart")
    },
}
IN_BASIC_BUNDLE = {"bar", "pie", "scatter"}
VOID = {"meta", "br", "link", "img", "hr", "input"}


def _job(title: str) -> Job:
    """A job with layers, of a workload of this name."""
    job = made.comparison().jobs[0]
    return job.model_copy(
        update={"workload": job.workload.model_copy(update={"title": title}), "layers": made.layers(5)}
    )


HOSTILE = '</script><script>alert("x")</script><b>'


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


@pytest.fixture(scope="module", params=MADE)
def shown(request: pytest.FixtureRequest) -> Reader:
    return Reader(render(MADE[request.param]()))


def test_a_page_is_well_formed(shown: Reader) -> None:
    assert shown.wrong == []
    assert shown.open == []
    assert len(shown.ids) == len(set(shown.ids))
    assert ("html", {"lang": "en"}) in shown.elements
    assert [tag for tag, _ in shown.elements].count("h1") == 1


def test_nothing_is_fetched_and_links_lead_somewhere(shown: Reader) -> None:
    assert [link for link in shown.links if not link.startswith("#")] == []
    assert {link[1:] for link in shown.links} <= set(shown.ids)
    policy = next(found["content"] for tag, found in shown.elements if found.get("http-equiv"))
    assert str(policy).startswith("default-src 'none';")


def test_a_screen_reader_has_every_plot_in_words(shown: Reader) -> None:
    plots = [found for _, found in shown.elements if found.get("role") == "img"]
    assert all(found["aria-label"] for found in plots)
    assert len(plots) == len(shown.data)


@pytest.mark.parametrize("kind", MADE)
def test_figures_are_what_plotly_takes(kind: str) -> None:
    from plotly import graph_objects

    for figure in figures(contents([MADE[kind]()])):
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


@pytest.mark.parametrize("kind", MADE)
def test_colours_are_in_the_style(kind: str) -> None:
    text = render(MADE[kind]())
    style = text[text.index("<style>") : text.index("</style>")]
    light, dark = style.split(':root[data-theme="dark"]')
    for name in set(re.findall(r'"(--[a-z0-9-]+)"', text[text.index('id="figures"') :])):
        assert f"{name}:" in light.split("}")[0], name
        assert f"{name}:" in dark.split("}")[0], name


def test_the_same_record_makes_the_same_bytes() -> None:
    assert render(made.comparison()) == render(made.comparison())


@pytest.mark.parametrize("kind", ["troubled", "scaling", "regression", "noise"])
def test_every_word_of_a_page(kind: str) -> None:
    path = GOLDEN / f"html-{kind}.txt"
    text = "\n".join(Reader(render(MADE[kind]())).text) + "\n"
    if os.environ.get("XBENCH_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_it_is_a_format() -> None:
    assert FORMATS.entry("html").facts["extension"] == "html"


def test_text_from_a_record_is_only_text() -> None:
    job = made.comparison().jobs[0]
    job = job.model_copy(
        update={
            "workload": job.workload.model_copy(update={"title": HOSTILE}),
            "layers": [layer.model_copy(update={"name": HOSTILE}) for layer in made.layers(3)],
        }
    )
    results = [made.mode_result(HOSTILE, 0.5, (0.9, 0.8, 0.95), "faster", buckets=2)]
    record = made.comparison().model_copy(
        update={
            "jobs": [job],
            "command": HOSTILE,
            "warnings": [HOSTILE],
            "modes": {**made.comparison().modes, **{result.mode: result for result in results}},
        }
    )
    text = render(record)
    read = Reader(text)
    assert read.wrong == []
    assert [tag for tag, _ in read.elements].count("script") == 3
    assert [tag for tag, _ in read.elements].count("b") == 1, "the page's own name"
    assert any(HOSTILE in line for line in read.text)
    drawn = text[text.index('id="figures"') :]
    assert HOSTILE not in drawn
    assert "&lt;b&gt;" in drawn


def test_a_failed_mode_is_shown_with_its_reason_and_without_a_time() -> None:
    read = Reader(render(made.troubled()))
    said = " ".join(read.text)
    assert "INCOMPLETE: interrupted in round 3 of launch 1." in said
    assert "single FAILED: rank 1 on host 1 died: killed by SIGKILL" in said
    assert "mgwfbp FAILED the correctness gate against ddp" in said
    bars = next(figure for figure in figures(contents([made.troubled()])) if figure.key == "time-per-sample")
    assert sorted(bars.traces[0]["y"]) == ["ddp", "optimal"]
    assert set(bars.layout["yaxis"]["categoryarray"]) == {"ddp", "optimal", "mgwfbp", "single"}
    assert bars.table is not None
    assert [row[1] for row in bars.table.rows if row[0] in ("single", "mgwfbp")] == ["–", "–"]


def test_a_comparison_without_a_single_time_is_still_a_page() -> None:
    failed = [
        result.model_copy(update={"status": "failed", "error": "out of memory"})
        for result in made.comparison().modes.values()
    ]
    read = Reader(render(made.comparison(failed)))
    assert read.wrong == []
    assert sum("out of memory" in line for line in read.text) >= len(failed)
    assert "time-per-sample" not in read.ids


def test_an_empty_comparison_is_still_a_page() -> None:
    assert "No mode was measured" in render(made.comparison([], jobs=[], bounds=None, cost_model=None))


def test_a_validation_says_when_auto_might_overlap_the_next_forward_pass() -> None:
    free = predicted.validation().model_copy(update={"overlap": "forward"})
    assert "(--overlap forward)" in render(free)
    assert "(--overlap forward)" not in render(predicted.validation())


BARE: dict[str, Callable[[], AnyRecord]] = {
    "profile": lambda: made.profile().model_copy(
        update={"layers": [], "step": None, "cost_model": None, "bounds": None, "plans": {}, "samples": {}}
    ),
    "scaling": lambda: predicted.scaling().model_copy(update={"points": [], "findings": [], "links": []}),
    "validation": lambda: predicted.validation().model_copy(
        update={"cells": [], "errors": [], "errors_at_speed": [], "goals": [], "complete": False}
    ),
    "convergence": lambda: convergence(
        curves=[],
        modes={
            name: mode.model_copy(update={"status": "failed", "error": "no data", "accuracy": None, "test_loss": None})
            for name, mode in convergence().modes.items()
        },
    ),
    "tuned": lambda: tuned(tried={}, ratio=None, buckets=None),
    "blocks without steps": lambda: made.comparison(
        samples=[sample.model_copy(update={"steps_s": [], "warmup_s": []}) for sample in made.comparison().samples]
    ),
    "only warm-up": lambda: made.comparison(
        samples=[sample.model_copy(update={"steps_s": []}) for sample in made.comparison().samples]
    ),
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


def test_contention_that_says_nothing_is_left_out_of_a_profile() -> None:
    point = ContentionPoint(nbytes=4, in_flight=1, alone_s=0.0, loaded_s=1.0, compute_slowdown=1.0)
    record = made.profile()
    for points, shown in (([point], False), ([point.model_copy(update={"alone_s": 0.5})], True)):
        changed = record.model_copy(update={"contention": Contention(launch_s=0.0, points=points)})
        assert ("takes 2 times as long while the device computes" in page([changed])) == shown
