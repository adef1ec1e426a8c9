"""The tables in the pages that scripts make are those that they would make now."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from code_blocks import script

DOCS = Path(__file__).parents[3] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
OPTIONS, MEASURED = script("make_options"), script("make_measured")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_options_are_those_of_the_command_line(page: Path) -> None:
    before = page.read_text(encoding="utf-8")
    after = OPTIONS.with_tables(before, page.name)
    if os.environ.get("XBENCH_UPDATE_GOLDEN"):
        page.write_text(after, encoding="utf-8")
    assert before == after, "python docs/make_options.py writes it again"


@pytest.mark.parametrize("page", MEASURED.PAGES, ids=lambda page: page.name)
def test_the_measured_tables_are_those_of_the_committed_results(page: Path) -> None:
    before = page.read_text(encoding="utf-8")
    after = MEASURED.with_tables(before)
    if os.environ.get("XBENCH_UPDATE_GOLDEN"):
        page.write_text(after, encoding="utf-8")
    assert before == after, "python docs/make_measured.py writes it again"


def test_the_commands_of_regress_have_their_options_from_the_command_line() -> None:
    tables = re.findall(r"<!-- options: xbench regress (\w+) -->", (DOCS / "regress.md").read_text(encoding="utf-8"))
    assert sorted(tables) == ["check", "init"]
