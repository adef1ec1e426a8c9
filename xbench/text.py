"""Words made of parts: lists, counts, single lines, and text cut to a length. Standard library alone."""

from __future__ import annotations

from collections.abc import Sequence


def and_of(names: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def counted(number: int, one: str, many: str | None = None) -> str:
    """'1 bucket', '3 buckets'; `many` where the plural has another ending."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def one_line(text: str) -> str:
    """The words of a text with one space between them."""
    return " ".join(text.split())


def cut(text: str, most: int) -> str:
    """At most so many characters; the last is an ellipsis where some were left out."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def quoted(text: str, most: int = 60) -> str:
    """The text in quotes, cut first."""
    return repr(cut(text, most))
