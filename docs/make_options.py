"""Write the tables of options into the pages of the commands: `python docs/make_options.py`.

A table stands between `<!-- options: xbench NAME -->` and `<!-- /options -->`, and says what `--help` says. A test
holds the two equal; what is to be said beyond `--help` stands below the table, or in the page that `MORE` names.
"""

from __future__ import annotations

import re
from pathlib import Path

import click

from xbench import cli

DOCS = Path(__file__).parent
MORE = {
    "--accumulate": "list.md#the-training-step",
    "--amp": "list.md#the-training-step",
    "--checkpoint": "list.md#the-training-step",
    "--clip": "list.md#the-training-step",
    "--compress": "compare.md#half-the-bytes",
    "--fabric": "fabric.md",
    "--launches": "how-it-measures.md#steps-blocks-launches",
    "--until": "how-it-measures.md#as-many-launches-as-a-precision-needs",
    "--modes": "modes.md",
    "--optimizer-impl": "list.md#the-training-step",
    "--topology": "plan.md#how-it-gets-there",
    "--error-band": "plan.md#how-sure-it-is",
}
"""Where a page says more of an option than fits into a line."""

_VALUES = {
    type(click.INT): "N", click.IntRange: "N", type(click.FLOAT): "NUMBER", click.FloatRange: "NUMBER",
    click.Path: "FOLDER", type(click.STRING): "NAME",
}  # fmt: skip
_TABLE = re.compile(r"(<!-- options: xbench (?P<path>[a-z ]+) -->\n)(?P<rows>.*?)(<!-- /options -->)", re.DOTALL)
_DEFAULT = re.compile(r"\s*\[default: (?P<default>[^\]]+)\]$")


def main() -> None:
    """Write every page's tables again."""
    for page in sorted(DOCS.glob("*.md")):
        before = page.read_text(encoding="utf-8")
        after = with_tables(before, page.name)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(page)


def with_tables(text: str, page: str) -> str:
    """The page's text with all of its tables as the command line has them now."""
    return _TABLE.sub(lambda found: f"{found[1]}\n{table(found['path'], page)}\n{found[4]}", text)


def table(path: str, page: str) -> str:
    """The options of the command of that path ('fabric check'), as a Markdown table for that page."""
    context, command = _resolve(path)
    rows = [
        _row(option, context, page)
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden
    ]
    return "\n".join(["| option | meaning |", "| --- | --- |", *rows]) + "\n"


def _resolve(path: str) -> tuple[click.Context, click.Command]:
    context, command = click.Context(cli.cli, info_name="xbench"), cli.cli
    for name in path.split():
        found = command.get_command(context, name) if isinstance(command, click.Group) else None
        if found is None:
            raise LookupError(f"there is no command xbench {path}")
        context, command = click.Context(found, info_name=name, parent=context), found
    return context, command


def _row(option: click.Option, context: click.Context, page: str) -> str:
    meaning = " ".join((option.help or "").split())
    told = _DEFAULT.search(meaning)
    default = told["default"] if told else _default(option)
    meaning = _with_range(_DEFAULT.sub("", meaning), option)
    if default:
        meaning += f" Default: {default if told and ' ' in default else f'`{default}`'}."
    more = MORE.get(max(option.opts, key=len))
    if more:
        meaning += f" [More]({more.removeprefix(page) or page})"
    written = re.sub(r"(?<!\\)\|", r"\\|", _written(option, context))
    return f"| `{written}` | {meaning.strip()} |"


def _written(option: click.Option, context: click.Context) -> str:
    name = max(option.opts, key=len)
    if option.is_flag:
        return name
    values = option.make_metavar(context)
    if isinstance(option.type, click.Choice):
        values = values.strip("[]").replace("|", "\\|")
    elif option.metavar is None:
        values = _VALUES.get(type(option.type), values)
    return f"{name} {values}"


def _with_range(meaning: str, option: click.Option) -> str:
    kind = option.type
    if not isinstance(kind, click.IntRange | click.FloatRange) or kind.min is None or (kind.max or 1e9) >= 1e6:
        return meaning
    span = f"{kind.min:,} to {kind.max:,}".replace(",", "\u202f")
    return f"{meaning.removesuffix('.')} ({span})."


def _default(option: click.Option) -> str:
    if option.is_flag or not option.show_default or option.default is None:
        return ""
    return str(option.default)


if __name__ == "__main__":
    main()
