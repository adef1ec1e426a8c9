"""Every text of a record, replaced by one that tries to get out of every format."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ET

import pytest
from hostile import RECORDS, document, kind_of_place, leaves, read, replaced, share, shown
from shares import SEED

from xbench.records import dump

MARK = "QQ7"
HOSTILE = (
    f'=1+{MARK}<img src=x onerror=alert(1)>"\'\x1b[31m\x1b]0;pwn\x07\x9b5m\n::error::pwn{MARK}\n"); '
    'import os; os.system("id") #\u202e|`~[a](javascript:x)\u2028##[error]pwn'
)
BEGINS = f"::error::{MARK} ##[error]{MARK} ##vso[task.setvariable]{MARK}"
HARMLESS = f"{MARK} é 中 😀 שלום x[0] C:\\new a.b-c"
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
COMMAND = re.compile(r"^\s*::(error|warning|add-mask)|##\[|##vso\[", re.MULTILINE)


def _html(text: str) -> list[str]:
    head, _, data = text.rpartition('<script type="application/json" id="figures">')
    body = re.sub(r"<script>.*?</script>", "", head[head.find("<body") :], flags=re.DOTALL)
    return [word for word, there in (("tag", "<img" in body), ("tag in a figure", "\\u003cimg" in data)) if there]


def _notebook(text: str) -> list[str]:
    return [tag for tag in ("<img", "<script") if tag in text]


def _markdown(text: str) -> list[str]:
    naked = re.sub(r"`[^`\n]*`", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [word for word, there in (("tag", "<img" in naked), ("link", re.search(r"(?<!\\)\]\(javascript", naked)))
            if there]  # fmt: skip


def _csv(text: str) -> list[str]:
    cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
    return [f"formula {cell[:20]!r}" for cell in cells if cell.startswith(("=", "+", "@", "\t"))]


def wrong_with(name: str, text: str) -> list[str]:
    """Dangerous parts of a hostile text that come through in a format."""
    if name in ("json", "trace"):
        json.loads(text)
    if name == "junit":
        ET.fromstring(text)
    found = {"html": _html, "notebook": _notebook, "markdown": _markdown, "csv": _csv}.get(name, lambda text: [])(text)
    control = OBEYED.search(text)
    if control and (name != "html" or MARK in text[max(0, control.start() - 300) : control.end() + 300]):
        found.append(f"control {control[0]!r}")
    if name in ("terminal", "markdown", "csv") and (command := COMMAND.search(text)):
        found.append(f"command {command[0]!r}")
    found += ["code" for line in text.splitlines() if "import os; os.system" in line and "schedule=" in line]
    return found


def texts(kind: str) -> dict[str, str]:
    """Every different text of a record, with the place where it stands, once for places of a kind."""
    found: dict[str, str] = {}
    places = set()
    for path, value in leaves(document(kind)):
        if isinstance(value, str) and value not in found and kind_of_place(path) not in places:
            places.add(kind_of_place(path))
            found[value] = ".".join(map(str, path))
    return found


@pytest.mark.parametrize("kind", RECORDS)
def test_no_format_lets_a_hostile_text_out(kind: str) -> None:
    data = document(kind)
    loaded = 0
    for number, (old, place) in enumerate(texts(kind).items()):
        for payload in share((HOSTILE, BEGINS), SEED + number):
            record = read(replaced(data, old, payload))
            if record is None:
                continue
            loaded += 1
            for name, text in shown(record):
                assert wrong_with(name, text) == [], f"{name} of {kind} with {payload[:9]!r} at {place}"
    assert loaded > 5


@pytest.mark.parametrize("kind", RECORDS)
def test_harmless_foreign_text_is_read_and_written_unchanged(kind: str) -> None:
    data = document(kind)
    loaded = 0
    for old in texts(kind):
        record = read(replaced(data, old, HARMLESS))
        if record is not None:
            loaded += 1
            assert HARMLESS in json.dumps(json.loads(dump(record)), ensure_ascii=False).replace("\\\\", "\\")
    assert loaded > 5


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_that_was_read_is_written_alike(kind: str) -> None:
    assert read(document(kind)) is not None
    for old in texts(kind):
        record = read(replaced(document(kind), old, HOSTILE))
        if record is not None:
            assert read(json.loads(dump(record))) == record


def test_foreign_names_appear_in_the_report() -> None:
    record = read(replaced(document("comparison"), "optimal", "名前 é 😀"))
    for name, text in shown(record):
        if name in ("terminal", "markdown", "junit"):
            assert "名前 é 😀" in text, name
