"""Text formatting: lists, counts, single lines, and text cut to a length. Uses the standard library alone."""

from __future__ import annotations

from collections.abc import Sequence


def and_of(names: Sequence[str]) -> str:
    """Join names: 'a', 'a and b', 'a, b and c'."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return number and noun: '1 bucket', '3 buckets'. `many` is an irregular plural."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def one_line(text: str) -> str:
    """Return the words of a text with one space between them."""
    return " ".join(text.split())


def cut(text: str, most: int) -> str:
    """Return at most `most` characters. An ellipsis replaces the end of a longer text."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def quoted(text: str, most: int = 60) -> str:
    """Return the text in quotes, cut to `most` characters first."""
    return repr(cut(text, most))
