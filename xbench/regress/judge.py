"""Verdicts: from the raw launches of a `Regression` to one word a case, and from those to an exit code.

`judge` reads nothing but the record, so a saved check can be judged again.
"""

from __future__ import annotations

from collections.abc import Sequence

from xbench.records import Case, LaunchPair, NoiseFloor, Regression, Suite


def judge(regression: Regression) -> Regression:
    """The same record with `cases` filled in from its measurements, in the order of the suite.

    A wall-clock case is *suspected* when its interval's lower end passes the line (half the threshold), its upper end
    reaches the threshold, and its Holm-adjusted p is below alpha. Where `confirm` is set it is `regressed` only once
    `confirmation` says the same by itself, and `inconclusive` until then.
    """
    raise NotImplementedError


def suspected(regression: Regression) -> list[Case]:
    """The cases of a judged record that the first launches speak against, and that fresh ones have to confirm."""
    return [case.case for case in regression.cases if case.suspected]


def floors_of(suite: Suite, pairs: Sequence[LaunchPair], checked_pairs: int) -> list[NoiseFloor]:
    """The noise floor of every wall-clock case of the suite, from A/A pairs, for checks of `checked_pairs` pairs.

    A case without enough pairs (6 of either), or without a ratio in one of them, has none.
    """
    raise NotImplementedError


def exit_code(regression: Regression, strict: bool) -> int:
    """0 nothing got worse; 3 a regression; with `strict` also 5 missing or not comparable, else 4 inconclusive.

    3 comes before 5, and 5 before 4.
    """
    raise NotImplementedError
