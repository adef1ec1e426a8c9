"""Characters that must not reach a reader as they are, and what is shown in their place.

**Controls.** `visible` writes out what a terminal or a log would obey, or what hides from a reader: C0 and C1 controls,
line ends and tabs, marks of writing direction, halves of surrogate pairs. `defused` is the same for text of several
lines, and no line of it is a command to a CI system (`::error::`, `##[group]`).

**Stand-ins.** A stream that is not UTF-8 gets plain characters in place of those that reports are drawn with. Every
stand-in is as wide as what it stands for, so tables and bars keep their shape. What has none is escaped. A stream takes
it with `stream.reconfigure(errors=STAND_INS)`; what it can encode (a Latin-1 terminal knows µ and ×) stays.
"""

from __future__ import annotations

import codecs
import re

_OBEYED = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROL = re.compile(f"[{_OBEYED}]")
_CONTROL_IN_LINE = re.compile(f"(?!\n)[{_OBEYED}]")
_COMMAND = re.compile(r"^[^\S\n]*:(?=:)|##(?=\[|vso\[)", re.MULTILINE)


def visible(text: str) -> str:
    r"""The text as one line in which each control stands as an escape: an escape character is shown as `\x1b`.

    Text without any is returned unchanged, so letters of every script, emoji and backslashes stay as they are.
    """
    return _CONTROL.sub(_written_out, text)


def visible_lines(text: str) -> str:
    """As `visible`, for text of several lines: line feeds stay."""
    return _CONTROL_IN_LINE.sub(_written_out, text)


def command_breaks(text: str) -> list[int]:
    """Positions, ascending, that need a space so that no line of the text is a command to a CI system.

    GitHub takes a line that begins with `::` for a command, and `##[` anywhere; Azure takes `##vso[`.
    """
    return [found.end() for found in _COMMAND.finditer(text)]


def defused(text: str) -> str:
    """Text of several lines for a terminal or a CI log: as `visible_lines`, and with the spaces of `command_breaks`."""
    text = visible_lines(text)
    for place in reversed(command_breaks(text)):
        text = f"{text[:place]} {text[place:]}"
    return text


def _written_out(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


STAND_INS = "xbench.stand-ins"
"""The name of this error handler, for `errors=`."""

_PLAIN = {
    **dict.fromkeys("█▉▊▋▌", "#"),
    **dict.fromkeys("▍▎▏", " "),
    **dict.fromkeys("─–—−", "-"),
    **dict.fromkeys("│┃", "|"),
    "▄": "=",
    "░": ".",
    "├": "[",
    "┤": "]",
    "┼": "+",
    "…": ".",
    "·": ".",
    "µ": "u",
    "μ": "u",
    "×": "x",
    "→": ">",
    "±": "~",
    "≤": "<",
    "α": "a",
    "β": "b",
    "γ": "g",
    "Σ": "S",
    "’": "'",
    "°": " ",
    "‘": "'",
    **dict.fromkeys("“”", '"'),
    "←": "<",
    "≥": ">",
    "≈": "~",
    "•": "*",
    "✓": "v",
    "✗": "x",
    "²": "2",
    "Δ": "D",
}


def stand_in(error: UnicodeError) -> tuple[str, int]:
    """The handler itself: see `codecs.register_error`. Raises what it is given if nothing was to be encoded."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    told = (_PLAIN.get(one) or one.encode("ascii", "backslashreplace").decode() for one in
            error.object[error.start : error.end])  # fmt: skip
    return "".join(told), error.end


codecs.register_error(STAND_INS, stand_in)
