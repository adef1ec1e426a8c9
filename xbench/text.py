"""Text: lists, counts, single lines, cut text, and replacement of characters that an output cannot take.

**Controls.** `visible` escapes characters that a terminal or a log obeys or that are invisible: C0 and C1 controls,
line ends and tabs, marks of writing direction, halves of surrogate pairs. `defused` does the same for text of several
lines, and breaks commands to a CI system (`::error::`, `##[group]`).

**Stand-ins.** A stream that is not UTF-8 gets plain characters in place of those that reports are drawn with. Every
stand-in is as wide as the character it replaces, so tables and bars keep their shape. A character without a stand-in is
escaped. `stream.reconfigure(errors=STAND_INS)` selects this handler. Characters that the stream can encode stay (a
Latin-1 terminal has µ and ×).

Uses the standard library alone.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence


def and_of(names: Sequence[str]) -> str:
    """Join names: 'a', 'a and b', 'a, b and c'."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def entries(text: str) -> list[str]:
    """Split a list at commas: 'a, b:x=1,y=2' is 'a' and 'b:x=1,y=2'.

    A piece 'key=value' belongs to the entry before it, if that has options. Empty entries stay.
    """
    found: list[str] = []
    for piece in (part.strip() for part in text.split(",")):
        if found and "=" in piece and ":" not in piece and ":" in found[-1]:
            found[-1] += f",{piece}"
        else:
            found.append(piece)
    return found


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return number and noun: '1 bucket', '3 buckets'. `many` is an irregular plural."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def capitalized(sentence: str) -> str:
    """Return the sentence with a capital letter at its start and no other change."""
    return sentence[:1].upper() + sentence[1:]


def one_line(text: str) -> str:
    """Return the words of a text with one space between them."""
    return " ".join(text.split())


def cut(text: str, most: int) -> str:
    """Return at most `most` characters. An ellipsis replaces the end of a longer text."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


UNBROKEN = "\ue000"
"""Stands for a space where no line may end. Printing puts the space back."""

_PROGRAM = "(?:xbench|git|pip|python|torchrun|apt-get|sysctl|ulimit|export)"
_WORD = r"""(?:'[^'\n]+'|"[^"\n]+"|[^\s()'"]*[^\s()'".,;:])"""
_NO_PROSE = rf"(?=['\"/-]|[A-Z]+\b|[^\s()]*[\w~][./=:@_,\[-]\w){_WORD}"
_OPTION = rf"--\w[\w-]* {_WORD}"  # and its value
_TO_PASTE = re.compile(
    r'(?<![\w.])[\w.]{1,80} = (?:"[^"\n]*"|\[[^\]\n]*\])'  # an assignment
    r"|\bxbench\.\w+\([^()\n]*\)"  # a call
    rf"|\b{_PROGRAM}(?! \d)(?: [a-z][\w-]*)?(?:(?: {_WORD}){{0,2}}? (?:{_OPTION}|{_NO_PROSE}))*"  # a command
    rf"|(?<![\w-]){_OPTION}"
)


def unbroken(text: str) -> str:
    """Return the text with every space inside a line to paste replaced by UNBROKEN, so that folding keeps it whole.

    Such lines are commands with their options, assignments, and calls of xbench.
    """
    return _TO_PASTE.sub(lambda found: found[0].replace(" ", UNBROKEN), text)


def quoted(text: str, most: int = 60) -> str:
    """Return the text in quotes, cut to `most` characters first."""
    return repr(cut(text, most))


# --- characters ---------------------------------------------------------------------------------------------------

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
    character: plain
    for plain, characters in {
        "#": "█▉▊▋▌", " ": "▍▎▏°", "-": "─–—−", "|": "│┃", "=": "▄", ".": "░…·", "[": "├", "]": "┤", "+": "┼",
        "u": "µμ", "x": "×✗", ">": "→≥", "<": "←≤", "~": "±≈", "a": "α", "b": "β", "g": "γ", "S": "Σ", "D": "Δ",
        "'": "‘’", '"': "“”", "*": "•", "v": "✓", "2": "²",
    }.items()
    for character in characters
}  # fmt: skip


def replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    """Replace the characters of an encoding error (`codecs.register_error`). Raises any other UnicodeError again."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    told = (_PLAIN.get(one) or one.encode("ascii", "backslashreplace").decode() for one in
            error.object[error.start : error.end])  # fmt: skip
    return "".join(told), error.end


codecs.register_error(STAND_INS, replace_unencodable)
