"""The help of xbench and of every command, word by word.

`XBENCH_UPDATE_GOLDEN=1` rewrites tests/frozen/help. A difference may show only what a commit changes on purpose.
"""

from __future__ import annotations

import click
import pytest
from golden_file import FROZEN, golden
from test_themes import commands

from xbench import cli

ROOT = cli.cli.make_context("xbench", ["x"], resilient_parsing=True)
COMMANDS: dict[str, click.Command] = {"xbench": cli.cli, **dict(commands())}


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
