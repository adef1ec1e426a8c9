"""Every message that the page on troubleshooting quotes is one that the code can say."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"^[- ] `([^`]+)`(?:<br>)?$", PAGE, flags=re.MULTILINE)


def said(source: str) -> set[str]:
    """Every string of a module, '…' for what is filled in and quotes around what is shown with them."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            found.add("".join(_piece(value) for value in node.values))
    return found


def _piece(value: ast.expr) -> str:
    if isinstance(value, ast.Constant):
        return str(value.value)
    return "'…'" if isinstance(value, ast.FormattedValue) and value.conversion == ord("r") else "…"


SAID = set().union(*(said(path.read_text(encoding="utf-8")) for path in (ROOT / "xbench").rglob("*.py")))


@pytest.mark.parametrize("message", QUOTED)
def test_a_quoted_message_is_in_the_source(message: str) -> None:
    assert message in SAID


def test_messages_are_found_and_none_is_quoted_twice() -> None:
    assert len(QUOTED) == len(set(QUOTED)) > 20


def test_a_message_is_read_as_it_is_shown() -> None:
    assert said("f'unknown {kind} {name!r}' 'plain'") >= {"unknown … '…'plain"}
    assert said("raise E(f'a {b}' if b else 'c')") >= {"a …", "c"}
