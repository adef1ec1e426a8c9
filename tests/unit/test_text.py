from __future__ import annotations

import pytest

from xbench.text import and_of, counted, cut, one_line, quoted


@pytest.mark.parametrize(("names", "text"), [(["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")])
def test_lists(names: list[str], text: str) -> None:
    assert and_of(names) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 buckets"), (1, "1 bucket"), (2, "2 buckets")])
def test_counts(number: int, text: str) -> None:
    assert counted(number, "bucket") == text


def test_a_plural_of_another_ending() -> None:
    assert counted(1, "launch", "launches") == "1 launch"
    assert counted(3, "launch", "launches") == "3 launches"


def test_one_line_keeps_the_words() -> None:
    assert one_line("  two\n\twords ") == "two words"


def test_a_text_is_cut_where_it_is_too_long_alone() -> None:
    assert cut("abcd", 4) == "abcd"
    assert cut("abcde", 4) == "abc…"
    assert quoted("abcde", 4) == "'abc…'"
