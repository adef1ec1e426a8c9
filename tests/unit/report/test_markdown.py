"""Markdown: that nothing foreign breaks a table or begins a tag."""

from __future__ import annotations

import sample_records as made
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from xbench.report.formats.markdown import render
from xbench.report.markup import code, details, fenced, plain, table


def test_many_warnings_are_folded_and_few_are_not() -> None:
    few, many = made.comparison(), made.comparison(warnings=[f"number {number}" for number in range(4)])
    assert "\n- warning: 2 hosts share 8 cores: each rank has 4\n" in render(few)
    assert "<summary>4 warnings</summary>" in render(many)


@given(st.text(alphabet="ab1 |*_`<>&[]()~\\\n#!", max_size=40))
def test_plain_text_shows_as_it_is(text: str) -> None:
    (shown,) = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parseInline(plain(text))
    assert shown.children is not None
    assert {part.type for part in shown.children} <= {"text", "text_special", "entity"}
    # A command to a CI system gets a space that breaks it: see `characters.command_breaks`.
    said = "".join(part.content for part in shown.children)
    assert said.replace("## [", "##[") == " ".join(text.split()).replace("## [", "##[")


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
