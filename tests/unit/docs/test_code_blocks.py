"""Every command of README.md and docs is run here, or marked with the reason why not, and then its words must hold.

`XBENCH_UPDATE_GOLDEN=1 pytest tests/unit/docs` writes what commands print now into the pages, and the tables that are
made from the command line and from the committed records: read the difference before you commit it.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import io
import json
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
import pytest
from code_blocks import (
    PAGES,
    REASONS,
    ROOT,
    Block,
    Typed,
    agrees,
    blocks,
    command_blocks,
    python_blocks,
    redirected,
    renewed,
)
from code_blocks import xbench_words as words_of

import xbench
from xbench import cli
from xbench.environment import take_inventory
from xbench.schedules.attach import DEFAULTS

if TYPE_CHECKING:
    from typing_extensions import Buffer

COMMANDS = command_blocks()
PYTHON = python_blocks()
LAUNCHING = ("compare", "profile", "tune", "converge")
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
UPDATE = bool(os.environ.get("XBENCH_UPDATE_GOLDEN"))


class Launched(BaseException):
    """All words were parsed and held to be right; now ranks would be started."""


taken_once = functools.cache(take_inventory)
"""What the machine has: asking takes seconds, and it does not change between two commands."""


def _launch(*_: object, **__: object) -> NoReturn:
    raise Launched


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a reader has: committed results, the reader's own files, and the record of a run."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("docs", "examples", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "results", folder / "results", ignore=shutil.ignore_patterns("runs"))
    (folder / "results" / "runs" / "20260301-120000-resnet18").mkdir(parents=True)
    for record in ("record.json", "results/runs/20260301-120000-resnet18/record.json"):
        shutil.copy(ROOT / "results" / "resnet18-b14-1gbit.json", folder / record)
    for name in ("train.py", "bench.py"):
        own = next(block.text for block in PYTHON if block.text.startswith(f"# {name}"))
        (folder / name).write_text(own, encoding="utf-8")
    return folder


@pytest.fixture
def folder(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Type in the copy, without what an environment may change, and without starting ranks."""
    monkeypatch.chdir(checkout)
    for name in ("COLUMNS", "FORCE_COLOR", "RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "XBENCH_HOST_TUNING"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("xbench.environment.take_inventory", taken_once)
    monkeypatch.setattr("xbench.horovod.obstacle", lambda: None)  # typed where Horovod is built
    for function in ("execute.execute", "converge.execute"):
        monkeypatch.setattr(f"xbench.runs.{function}", _launch)


class Copied(io.BytesIO):
    """What is written here is written to another stream as well."""

    def __init__(self, other: io.BytesIO) -> None:
        super().__init__()
        self.other = other

    def write(self, data: Buffer) -> int:
        self.other.write(data)
        return super().write(data)


def typed(words: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    """Run the command line in this process: exit code, standard output, and both outputs as a terminal shows them."""
    monkeypatch.setattr(sys, "argv", ["xbench", *words])
    both = io.BytesIO()
    out = Copied(both)
    stdout = io.TextIOWrapper(out, "utf-8", write_through=True)
    stderr = io.TextIOWrapper(both, "utf-8", write_through=True)
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = cli.main(words)
    return code, out.getvalue().decode(), both.getvalue().decode()


def held(words: list[str]) -> None:
    """Parse a command's words without running it; raises what the command line would complain of."""
    context = cli.cli.make_context("xbench", ["x"], resilient_parsing=True)
    command = cli.cli.get_command(context, words[0])
    assert command is not None, f"there is no command {words[0]!r}"
    while isinstance(command, click.Group):
        words = words[1:]
        child = command.get_command(context, words[0])
        assert child is not None, f"there is no command {words[0]!r}"
        command = child
    command.make_context(words[0], list(words[1:]), parent=context)


def _where(block: Block) -> str:
    return block.where


@pytest.mark.parametrize("block", COMMANDS, ids=_where)
def test_a_mark_names_a_known_reason(block: Block) -> None:
    known = ", ".join(REASONS)
    assert block.needs is None or block.needs in REASONS, f"{block.where}: the reasons are {known}"


@pytest.mark.parametrize("block", [block for block in COMMANDS if block.needs], ids=_where)
@pytest.mark.usefixtures("folder")
def test_commands_that_are_not_run_have_words_that_hold(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in block.typed():
        words = words_of(command.line)
        if words is None:
            _exists(command.line, block)
        elif words[0] in LAUNCHING:
            with pytest.raises(Launched):
                print(block.where, command.line, typed(words, monkeypatch))
        else:
            held(words)


@pytest.mark.parametrize("block", [block for block in COMMANDS if not block.needs], ids=_where)
@pytest.mark.usefixtures("folder")
def test_commands_do_what_the_page_says(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in block.typed():
        words = words_of(command.line)
        hint = f"{block.where}: nothing runs this; put a mark above it: <!-- needs: minutes -->"
        assert words is not None, hint
        try:
            code, out, both = typed(words, monkeypatch)
        except Launched:
            pytest.fail(hint)
        _judge(command, code, both, block)
        asked = re.search(r"\| jq \.([\w.]+)$", command.line)
        if asked:
            functools.reduce(dict.__getitem__, asked[1].split("."), json.loads(out))
        target = redirected(command.line)
        if target:
            Path(target).write_text(out, encoding="utf-8")


def _judge(command: Typed, code: int, both: str, block: Block) -> None:
    refused = any(line.startswith("error:") for line in command.shown)
    assert refused or code == 0, f"{block.where}: {command.line}\n{both}"
    assert not refused or code != 0, f"{block.where}: {command.line} was to be refused\n{both}"
    if command.shown:
        told = "\n".join(command.shown)
        if UPDATE and not agrees(command.shown, both):
            page = block.page.read_text(encoding="utf-8")
            now = "\n".join(renewed(command.shown, both))
            block.page.write_text(page.replace(f"$ {command.line}\n{told}\n", f"$ {command.line}\n{now}\n"), "utf-8")
            return
        assert agrees(command.shown, both), f"{block.where}: {command.line}\nprints\n{both}\nand not\n{told}"


def _exists(line: str, block: Block) -> None:
    """Hold a line for another program to what is here: a target of the Makefile, a script."""
    for target in re.findall(r"(?:^|\s)make ([a-z]+)", line):
        assert target in TARGETS, f"{block.where}: the Makefile has no {target}"
    for script in re.findall(r"python (\S+\.py)", line):
        assert (ROOT / script).exists(), f"{block.where}: there is no {script}"


@pytest.mark.parametrize("block", PYTHON, ids=_where)
def test_python_in_the_pages_names_what_there_is(block: Block) -> None:
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "xbench":
            assert node.attr in xbench.__all__, f"{block.where}: xbench.{node.attr}"
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "xbench.attach":
            taken = inspect.signature(xbench.attach).parameters.keys() | DEFAULTS.keys()
            assert {word.arg for word in node.keywords} <= taken, block.where


def test_the_factory_of_the_pages_is_one_and_trains() -> None:
    own = {block.text for block in PYTHON if block.text.startswith("# train.py")}
    assert len(own) == 1, "the pages show different files of the name train.py"
    names: dict[str, object] = {}
    exec(own.pop(), names)
    model, (inputs, targets), loss = names["make"]()  # type: ignore[operator]
    loss(model(inputs), targets).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (("a", "b"), "a\nb\n", True),
        (("a", "b"), "a\nc\n", False),
        (("a",), "a\nb\n", False),
        (("a", "…"), "a\nb\nc\n", True),
        (("…", "c"), "a\nb\nc\n", True),
        (("…", "d"), "a\nb\nc\n", False),
        (("step … ms",), "step 3 ms\n", True),
        (("step … ms",), "step\n3 ms\n", False),
        (("a.c",), "abc\n", False),
        (("a",), "\na  \n\n", True),
    ],
)
def test_what_is_left_out_of_an_output_is_marked(shown: tuple[str, ...], printed: str, same: bool) -> None:
    assert agrees(shown, printed) is same


def test_json_and_toml_in_the_pages_parse() -> None:
    parsers = {"json": json.loads, "toml": tomllib.loads}
    for block in (block for page in PAGES for block in blocks(page)):
        if block.language in parsers:
            parsers[block.language](block.text)
