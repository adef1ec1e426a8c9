"""`--help`: options by theme, whole phrases, and examples that parse."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from xbench import cli
from xbench.commands.options import OTHER, ThemedCommand


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that there is, with the words that name it."""
    context = cli.cli.make_context("xbench", ["x"], resilient_parsing=True)
    left = [(name, cli.cli.get_command(context, name)) for name in cli.COMMANDS]
    while left:
        name, command = left.pop()
        assert command is not None
        if isinstance(command, click.Group):
            left += [(f"{name} {child}", found) for child, found in command.commands.items()]
        else:
            yield name, command


THEMED = [pytest.param(name, command, id=name) for name, command in commands() if isinstance(command, ThemedCommand)]


@pytest.mark.parametrize(("name", "command"), THEMED)
def test_every_option_of_a_themed_command_stands_under_a_theme(name: str, command: ThemedCommand) -> None:
    context = cli.cli.make_context("xbench", ["x"], resilient_parsing=True)
    told = command.get_help(click.Context(command, info_name=name, parent=context))
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
