"""The code blocks of README.md and docs/*.md, and what a line of one asks for.

A block is commands if it is fenced as `sh` or `console`, or if it is indented or has no language and its first line
begins with a program of `PROGRAMS` (as in `sh`) or with `$ ` (as in `console`). In a `console` block lines after `$ `
are commands and the others are what they print; a line of `…` alone stands for any lines, and `…` inside a line for any
text. In the other blocks every line is a command. `<!-- needs: REASON -->`, alone above a block, says why no test runs
it; `REASONS` are all there are.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[3]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))

REASONS = {
    "minutes": "starts ranks and times them, or installs something",
    "a cluster": "needs machines, or an engine that starts ranks on them",
    "a GPU": "needs a GPU",
    "root": "raises network namespaces, which not every machine allows",
    "the network": "asks another machine",
    "a repository": "is typed in the reader's own git repository",
}
PROGRAMS = {
    "xbench", "make", "git", "cd", "pip", "python", "pytest", "torchrun", "srun", "sbatch", "mpirun",
    "kubectl", "jq", "source", "eval",
}  # fmt: skip
_NEEDS = re.compile(r"<!-- needs: (?P<reason>[^>]+?) -->\s*")


@dataclass(frozen=True)
class Typed:
    """One command line, and the lines that the page shows below it: none where it shows no output."""

    line: str
    shown: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """One code block; `number` is the line of the page on which it begins, counted from 1."""

    page: Path
    number: int
    language: str
    text: str
    needs: str | None

    @property
    def where(self) -> str:
        """'docs/plan.md:3', as editors take it."""
        return f"{self.page.relative_to(ROOT)}:{self.number}"

    def is_commands(self) -> bool:
        """Whether it holds what one types into a shell."""
        if self.language:
            return self.language in ("sh", "console")
        return _program(self.text.replace("\\\n", " ").splitlines()[0]) in PROGRAMS

    def typed(self) -> list[Typed]:
        """Its commands, with lines that end in a backslash joined."""
        if self.language == "console":
            return list(_console(self.text))
        joined = self.text.replace("\\\n", " ")
        return [Typed(line, ()) for line in joined.splitlines() if _words(line)]


def blocks(page: Path) -> list[Block]:
    """Every code block of a page, in order."""
    tokens = MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8"))
    found = []
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type not in ("fence", "code_block"):
            continue
        comment = before.content if before is not None and before.type == "html_block" else ""
        marked = _NEEDS.fullmatch(comment)
        number = token.map[0] + 1 if token.map else 0
        language = token.info.strip() or ("console" if token.content.startswith("$ ") else "")
        found.append(Block(page, number, language, token.content, marked["reason"] if marked else None))
    return found


def command_blocks() -> list[Block]:
    """Every block of commands of every page."""
    return [block for page in PAGES for block in blocks(page) if block.is_commands()]


def python_blocks() -> list[Block]:
    """Every block of Python of every page."""
    return [block for page in PAGES for block in blocks(page) if block.language == "python"]


def xbench_words(line: str) -> list[str] | None:
    """What `xbench` is given in a command line, up to a pipe or a redirection; None where it is another program's.

    'torchrun … -m xbench compare' is xbench's as well.
    """
    words = _words(line)
    if "xbench" not in words or _program(line) in ("git", "cd"):
        return None
    own = words[words.index("xbench") + 1 :]
    ends = [at for at, word in enumerate(own) if word in ("|", ">", ">>", "&&")]
    return own[: ends[0]] if ends else own


def redirected(line: str) -> str | None:
    """The file that takes the standard output: what stands after '>'."""
    words = _words(line)
    return words[words.index(">") + 1] if ">" in words else None


def agrees(shown: tuple[str, ...], printed: str) -> bool:
    """Whether the lines of a page are what was printed, '…' standing for anything; blanks at ends of lines aside."""
    pattern = ""
    for line in shown:
        if line.strip() == "…":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(re.escape(piece) for piece in line.rstrip().split("…")) + r"\n"
    text = "".join(f"{line.rstrip()}\n" for line in printed.strip("\n").splitlines())
    return re.fullmatch(pattern, text) is not None


def renewed(shown: tuple[str, ...], printed: str) -> list[str]:
    """The lines that a page should show in place of `shown`: as many as before if it leaves out the end, else all."""
    lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
    return [*lines[: len(shown) - 1], "…"] if shown[-1].strip() == "…" else lines


def _console(text: str) -> Iterator[Typed]:
    command, shown = "", []
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield Typed(command, _without_blank_ends(shown))
            command, shown = line[2:], []
        elif command.endswith("\\"):
            command = f"{command[:-1]} {line}"
        else:
            shown.append(line)
    if command:
        yield Typed(command, _without_blank_ends(shown))


def _without_blank_ends(lines: list[str]) -> tuple[str, ...]:
    kept = "\n".join(lines).strip("\n")
    return tuple(kept.splitlines())


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # an apostrophe in a formula
        return []


def _program(line: str) -> str:
    words = [word for word in _words(line) if not re.fullmatch(r"[A-Z_]+=\S*", word)]
    return words[0] if words else ""


def script(name: str) -> ModuleType:
    """A script of docs/, which is no package."""
    found = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
