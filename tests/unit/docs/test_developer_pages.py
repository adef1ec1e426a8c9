"""The pages for people who change xbench: paths exist, tables agree with the code, procedures have six steps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from code_blocks import ROOT

import xbench
from xbench.errors import XbenchError
from xbench.rank.events import KINDS
from xbench.records import SCHEMA_VERSION
from xbench.regress.judge import FAILED, INCOMPARABLE, INCONCLUSIVE, REGRESSED

CONTRIBUTING = ROOT / "CONTRIBUTING.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
SOURCES = sorted((ROOT / "xbench").rglob("*.py"))
PATH = re.compile(
    r"(?<![\w/.-])(?:xbench|tests|docs|cuda|benchmarks|results|examples)/[\w./-]*\w|\b[A-Za-z]+\.(?:md|toml)\b"
)


def section(page: Path, heading: str) -> str:
    """The text of a page below a heading, up to the next of the same level or above."""
    text = page.read_text(encoding="utf-8")
    level = heading.partition(" ")[0]
    _, found, rest = f"\n{text}".partition(f"\n{heading}\n")
    assert found, f"{page.name} has no {heading!r}"
    return re.split(rf"^#{{1,{len(level)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> list[list[str]]:
    """The cells of every row of the tables in a text, headings left out."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row, below in zip(cells, [*cells[1:], [""]], strict=True) if not _rule(row) and not _rule(below)]


def _rule(row: list[str]) -> bool:
    return set("".join(row)) == {"-", " "} or set("".join(row)) == {"-"}


def calls() -> Iterator[tuple[Path, ast.Call]]:
    """Every call in the package's source."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield path, node


@pytest.mark.parametrize("page", [CONTRIBUTING, ARCHITECTURE], ids=lambda page: page.name)
def test_paths_on_the_page_exist(page: Path) -> None:
    """`NAME` in a path stands for any name: at least one file is called so."""
    named = set(PATH.findall(page.read_text(encoding="utf-8")))
    assert len(named) > 20
    folders = (ROOT, page.parent)
    assert [path for path in named if not any(list(base.glob(path.replace("NAME", "*"))) for base in folders)] == []


def test_the_tree_has_every_package_once() -> None:
    named = [re.sub("`", "", row[0]) for row in rows(section(ARCHITECTURE, "## The tree"))]
    packages = {str(path.parent.relative_to(ROOT)) for path in (ROOT / "xbench").glob("*/**/__init__.py")}
    assert packages - set(named) == set(), "the table lacks them"
    assert len(named) == len(set(named))


def test_the_life_of_a_gradient_is_that_of_the_code() -> None:
    text = section(ARCHITECTURE, "## The life of a gradient")
    table = rows(text)
    for number, (shown, file, functions, _) in enumerate(table, start=1):
        assert shown == str(number)
        path = ROOT / file.strip("`")
        defined = set(re.findall(r"\b(?:def|function) (\w+)\(", path.read_text(encoding="utf-8")))
        assert set(re.findall(r"`(\w+)`", functions)) <= defined, file
        assert functions, file
    forms = [form for row in table for form in row[3].split(";") if form]
    assert len({row[1] for row in table}) == len(table)
    assert f"That is {len(table)} files and {len(forms)} representations of a transfer." in text
    assert len(table) <= 12
    assert len(forms) <= 6


def test_the_events_are_those_that_ranks_write() -> None:
    text = section(ARCHITECTURE, "## The record and its history")
    shown = re.findall(r"`(\w+)`", text.partition("Events of a journal")[2].partition("Other formats")[0])
    assert sorted(shown) == sorted(KINDS)


def test_the_threads_are_those_that_the_code_starts() -> None:
    text = section(ARCHITECTURE, "## Processes and threads").partition("threads of its own")[2]
    shown = {
        (name, path)
        for names, paths, _ in rows(text)
        for name in re.findall(r"`([^`]+)`", names)
        for path in re.findall(r"`([^`]+)`", paths)
    }
    started = {
        (re.sub(r"\{.*?\}", "…", ast.unparse(word.value).lstrip("f").strip("'\"")), str(path.relative_to(ROOT)))
        for path, call in calls()
        if ast.unparse(call.func) == "threading.Thread"
        for word in call.keywords
        if word.arg == "name"
    }
    assert shown == started


def test_the_exit_codes_are_those_of_the_errors_and_of_the_gate() -> None:
    text = section(ARCHITECTURE, "## The record and its history").partition("Exit codes")[2]
    kinds = [XbenchError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    of_the_gate = {FAILED, REGRESSED, INCONCLUSIVE, INCOMPARABLE}
    assert [int(row[0]) for row in rows(text)] == sorted({0, *of_the_gate, *(kind.exit_code for kind in kinds)})


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/schema.md", "xbench/records/io.py"])
def test_the_history_of_the_format_ends_with_the_version_of_today(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8").partition("`schema_version`" if page[0] == "d" else "schema_v")[2]
    versions = [int(version) for version in re.findall(r"^\| (\d+) \|", text.partition("\n\n")[0], flags=re.MULTILINE)]
    assert versions == list(range(1, SCHEMA_VERSION + 1))


def test_the_changelog_has_this_version_below_what_is_unreleased() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[?([\w.]+)\]?", text, flags=re.MULTILINE)
    assert versions[:2] == ["Unreleased", xbench.__version__]
    kinds = set(re.findall(r"^### (.+)$", text, flags=re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


@pytest.mark.parametrize(
    ("subject", "refused"),
    [
        ("fabrics: notice links that changed during a launch", False),
        ("limits, cli, ray: name more causes", False),
        ("make docs: install what the site needs", False),
        ("Merge branch 'modes'", False),
        ("Lines wrapped", True),
        ("fabrics:notice", True),
        ("docs: " + 67 * "x", True),
        ("docs: " + 66 * "x", False),
    ],
)
def test_subjects_of_commits_are_short_and_name_an_area(subject: str, refused: bool) -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"] if hook.get("stages") == ["commit-msg"]]
    message = f"{subject}\n\nA body may have lines that are longer than 72 characters, as long as it says why.\n"
    found = [re.search(hook["entry"].encode(), message.encode(), re.MULTILINE | re.DOTALL) for hook in hooks]
    assert any(found) is refused
