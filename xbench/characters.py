"""Replacement of characters that a terminal, a log or a stream's encoding cannot take.

**Controls.** `visible` escapes characters that a terminal or a log obeys or that are invisible: C0 and C1 controls,
line ends and tabs, marks of writing direction, halves of surrogate pairs. `defused` does the same for text of several
lines, and breaks commands to a CI system (`::error::`, `##[group]`).

**Stand-ins.** A stream that is not UTF-8 gets plain characters in place of those that reports are drawn with. Every
stand-in is as wide as the character it replaces, so tables and bars keep their shape. A character without a stand-in is
escaped. `stream.reconfigure(errors=STAND_INS)` selects this handler. Characters that the stream can encode stay (a
Latin-1 terminal has µ and ×).
"""

from __future__ import annotations

import codecs
import re

_OBEYED = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROL = re.compile(f"[{_OBEYED}]")
_CONTROL_IN_LINE = re.compile(f"(?!\n)[{_OBEYED}]")
_COMMAND = re.compile(r"^[^\S\n]*:(?=:)|##(?=\[|vso\[)", re.MULTILINE)


def visible(text: str) -> str:
    r"""Return the text as one line with each control character escaped: ESC becomes `\x1b`.

    Other characters stay as they are: letters of every script, emoji and backslashes.
    """
    return _CONTROL.sub(_written_out, text)


def visible_lines(text: str) -> str:
    """Escape as `visible` does, but keep line feeds."""
    return _CONTROL_IN_LINE.sub(_written_out, text)


def command_breaks(text: str) -> list[int]:
    """Return the positions, ascending, that need a space so that no line is a command to a CI system.

    GitHub reads a line that begins with `::` as a command, and `##[` anywhere. Azure reads `##vso[`.
    """
    return [found.end() for found in _COMMAND.finditer(text)]


def defused(text: str) -> str:
    """Make text of several lines safe for a terminal or a CI log.

    Controls are escaped as in `visible_lines`, and the spaces of `command_breaks` are inserted.
    """
    text = visible_lines(text)
    for place in reversed(command_breaks(text)):
        text = f"{text[:place]} {text[place:]}"
    return text


def _written_out(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


STAND_INS = "xbench.stand-ins"
"""Name of the error handler, for `errors=`."""

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
    """Replace the characters of an encoding error (`codecs.register_error`). Raises any other UnicodeError again."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    told = (_PLAIN.get(one) or one.encode("ascii", "backslashreplace").decode() for one in
            error.object[error.start : error.end])  # fmt: skip
    return "".join(told), error.end


codecs.register_error(STAND_INS, stand_in)
