"""`--help`: frozen word by word, options by theme, whole phrases, and examples that parse.

`XBENCH_UPDATE_GOLDEN=1` rewrites tests/frozen/help. A difference may show only what a commit changes on purpose.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from golden_file import FROZEN, golden

from xbench import cli
from xbench.commands.options import OTHER, ThemedCommand

ROOT = cli.cli.make_context("xbench", ["x"], resilient_parsing=True)


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that there is, with the words that name it."""
    left = [(name, cli.cli.get_command(ROOT, name)) for name in cli.COMMANDS]
    while left:
        name, command = left.pop()
        assert command is not None
        if isinstance(command, click.Group):
            left += [(f"{name} {child}", found) for child, found in command.commands.items()]
        else:
            yield name, command


COMMANDS: dict[str, click.Command] = {"xbench": cli.cli, **dict(commands())}
THEMED = [pytest.param(name, command, id=name) for name, command in commands() if isinstance(command, ThemedCommand)]


@pytest.mark.parametrize(("name", "command"), THEMED)
def test_every_option_of_a_themed_command_stands_under_a_theme(name: str, command: ThemedCommand) -> None:
    told = command.get_help(click.Context(command, info_name=name, parent=ROOT))
    assert f"\n{OTHER}:\n" not in told
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            assert told.count(f"{option.opts[-1]}") >= 1
    assert "\n  Examples:\n    xbench " in told


@pytest.mark.parametrize(("name", "command"), THEMED)
def test_the_examples_parse(name: str, command: ThemedCommand) -> None:
    lines = [line.strip() for line in (command.epilog or "").splitlines() if line.startswith("  xbench ")]
    assert len(lines) >= 2
    for line in lines:
        words = line.split(" > ")[0].removeprefix(f"xbench {name} ").replace("latest", "results/a.json").split()
        command.make_context(name, words)


def test_options_are_explained_in_whole_phrases() -> None:
    for name, command in commands():
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                told = option.help or ""
                assert re.match(r"[A-Z0-9]", told), (name, option.opts)
                assert not re.match(r"(Of|Which|In|After|From|With|Whose?) (?!all-reduce|modes|job)", told), (
                    name,
                    told,
                )
                assert told.split("  [")[0].endswith("."), (name, told)
                assert "alone" not in told, (name, told)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_is_frozen(name: str) -> None:
    parent = None if name == "xbench" else ROOT
    context = click.Context(COMMANDS[name], info_name=name, parent=parent, terminal_width=80)
    golden(f"help/{name.replace(' ', '-')}.txt", COMMANDS[name].get_help(context) + "\n", FROZEN)


def test_the_help_stays_short() -> None:
    assert sum(len(path.read_text(encoding="utf-8").split()) for path in (FROZEN / "help").glob("*.txt")) <= 3372
    visible = [
        option for option in COMMANDS["compare"].params if isinstance(option, click.Option) and not option.hidden
    ]
    assert len(visible) <= 24
