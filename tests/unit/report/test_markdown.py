"""Markdown: golden texts, and that nothing foreign breaks a table or begins a tag."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import sample_predictions as predicted
import sample_records as made
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from xbench.records import AnyRecord, load
from xbench.report.formats.markdown import render
from xbench.report.markup import code, details, fenced, plain, table

GOLDEN = Path(__file__).parents[2] / "golden"

CASES: dict[str, Callable[[], AnyRecord]] = {
    "comparison": made.comparison,
    "comparison-troubled": made.troubled,
    "profile": made.profile,
    "scaling": predicted.scaling,
    "validation": predicted.validation,
    "convergence": lambda: load(GOLDEN / "convergence-v1.json"),
    "tuned": lambda: load(GOLDEN / "tuned-v1.json"),
}


@pytest.mark.parametrize("name", CASES)
def test_golden_markdown(name: str) -> None:
    text = render(CASES[name]())
    path = GOLDEN / f"{name}.md"
    if os.environ.get("XBENCH_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_rows_have_as_many_cells_as_their_heading(name: str) -> None:
    rows: list[str] = []
    for line in [*render(CASES[name]()).splitlines(), ""]:
        if line.startswith("|"):
            rows.append(line)
        elif rows:
            assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1
            assert re.fullmatch(r"(\| -{3}:? )+\|", rows[1])
            rows = []


def test_a_failed_mode_has_a_row_and_a_reason() -> None:
    text = render(made.troubled())
    assert "| `single` | – | – | **FAILED** | – | – | – | – | – | real |" in text
    assert "- **single FAILED: rank 1 on host 1 died: killed by SIGKILL**" in text
    assert "\n\n> **INCOMPLETE: interrupted in round 3 of launch 1." in text


def test_many_warnings_are_folded_and_few_are_not() -> None:
    few, many = made.comparison(), made.comparison(warnings=[f"number {number}" for number in range(4)])
    assert "\n- warning: 2 hosts share 8 cores: each rank has 4\n" in render(few)
    assert "<summary>4 warnings</summary>" in render(many)


def test_what_is_foreign_is_escaped_everywhere() -> None:
    evil = "a|b\n<script>*x*</script> `y` [z](http://w)"
    workload = made.WORKLOAD.model_copy(update={"title": evil})
    record = made.comparison(
        jobs=[made.comparison().jobs[0].model_copy(update={"workload": workload, "layers": made.layers(2)})],
        warnings=[evil],
        command=f"xbench compare '{evil}'\n```\n<b>",
    )
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(render(record))
    assert "<script>" not in html
    assert "<em>x" not in html
    assert 'http://w"' not in html
    assert "<b>" not in html


@given(st.text(alphabet="ab1 |*_`<>&[]()~\\\n#!", max_size=40))
def test_plain_text_shows_as_it_is(text: str) -> None:
    (shown,) = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parseInline(plain(text))
    assert shown.children is not None
    assert {part.type for part in shown.children} <= {"text", "text_special", "entity"}
    # A command to a CI system gets a space that breaks it: see `characters.command_breaks`.
    assert "".join(part.content for part in shown.children).replace("## [", "##[") == " ".join(text.split()).replace(
        "## [", "##["
    )


@given(st.lists(st.text(max_size=20), min_size=1, max_size=4))
def test_cells_stay_in_their_row(cells: list[str]) -> None:
    text = table([str(number) for number in range(len(cells))], [[code(cell) for cell in cells]])
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    assert [token.type for token in tokens].count("td_open") == len(cells)


@given(st.text(alphabet="a`~\n", max_size=30))
def test_a_fence_is_longer_than_any_in_it(text: str) -> None:
    tokens = MarkdownIt("commonmark").parse(details("x", fenced(text)))
    (block,) = [token for token in tokens if token.type == "fence"]
    assert block.content.rstrip() == text.rstrip()


def test_a_validation_says_when_auto_might_overlap_the_next_forward_pass() -> None:
    free = predicted.validation().model_copy(update={"overlap": "forward"})
    assert "(--overlap forward)" in render(free)
    assert "--overlap" not in render(predicted.validation())
