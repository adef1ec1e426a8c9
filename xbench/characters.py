"""What a stream that is not UTF-8 gets in place of the characters that reports are drawn with.

Every stand-in is as wide as what it stands for, so tables and bars keep their shape. What has none is escaped. A stream
takes it with `stream.reconfigure(errors=STAND_INS)`; what it can encode (a Latin-1 terminal knows µ and ×) stays.
"""

from __future__ import annotations

import codecs

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
