"""Ranks and links that hold the others back, in every format; and nothing where nothing was found."""

from __future__ import annotations

from typing import Any

import pytest
import sample_records as made

from xbench.records import AnyRecord, SlowLink, SlowRank, Stragglers, dump, loads
from xbench.report.formats import html, markdown, terminal
from xbench.report.sentences import MAX_STRAGGLERS, link_line, rank_line, straggler_lines


def rank(number: int = 1, **changes: Any) -> SlowRank:
    fields: dict[str, Any] = {
        "rank": number, "host": "host 1", "parts": ["backward"], "layer": "layer4.1.conv2", "lag_s": 0.062,
        "share": 0.172, "chance": 1e-9,
    }  # fmt: skip
    return SlowRank(**fields | changes)


def link(**changes: Any) -> SlowLink:
    fields: dict[str, Any] = {
        "hosts": ["host 2"], "rate_bps": 212e6, "typical_bps": 940e6, "lag_s": 0.3, "share": 0.21, "chance": 1e-5,
    }  # fmt: skip
    return SlowLink(**fields | changes)


ALONE: dict[str, Any] = {"host": None, "layer": None}


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, ["Rank 1 (host 1) holds", "backward from layer4.1.conv2 on, 62.0 ms a step (17 %)"]),
        (ALONE, ["Rank 1 holds", "back: backward, 62.0 ms"]),
        ({"parts": ["backward", "forward"]}, ["backward from layer4.1.conv2 on and forward, 62.0 ms"]),
        (ALONE | {"parts": ["input"]}, ["back: its input, 62.0 ms", "prefetch it"]),
        (ALONE | {"parts": [], "waited_share": 0.41}, ["back: its step, 62.0 ms", "waited 41 %", "free its cores"]),
    ],
)
def test_a_rank_is_named_with_where_and_how_much(changes: dict[str, Any], parts: list[str]) -> None:
    assert all(part in rank_line(rank(**changes)) for part in parts)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, ["The link of host 2 holds", "212 Mbit/s where other links carry 940 Mbit/s, 300 ms", "(21 %)"]),
        (
            {"hosts": ["a", "b"], "typical_bps": 1e9, "typical_is_asked": True},
            ["The link between a and b holds", "212 Mbit/s of the 1.00 Gbit/s asked for"],
        ),
    ],
)
def test_a_link_is_named_with_its_rate_and_the_others(changes: dict[str, Any], parts: list[str]) -> None:
    assert all(part in link_line(link(**changes)) for part in parts)


def test_many_ranks_are_counted() -> None:
    lines = straggler_lines(Stragglers(ranks=[rank(number) for number in range(MAX_STRAGGLERS + 1)], links=[link()]))
    assert len(lines) == MAX_STRAGGLERS + 2
    assert lines[MAX_STRAGGLERS:] == ["Rank 3 holds them back too, by less.", link_line(link())]
    more = straggler_lines(Stragglers(ranks=[rank(number) for number in range(MAX_STRAGGLERS + 3)]))
    assert more[MAX_STRAGGLERS:] == ["Ranks 3, 4 and 5 hold them back too, by less."]


def records(found: Stragglers) -> list[AnyRecord]:
    """A profile and a comparison that found this."""
    compared = made.comparison()
    jobs = [job.model_copy(update={"stragglers": found}) for job in compared.jobs]
    return [
        made.profile().model_copy(update={"stragglers": found}),
        compared.model_copy(update={"jobs": jobs}),
    ]


def test_every_format_says_it() -> None:
    for record in records(Stragglers(ranks=[rank()], links=[link()])):
        assert loads(dump(record)) == record
        for shown in (terminal.render(record, width=200), markdown.render(record), html.contents([record])):
            assert str(shown).count("holds the others back") == 2, record.kind


def test_nothing_is_said_where_nothing_was_found() -> None:
    for record, before in zip(records(Stragglers()), [made.profile(), made.comparison()], strict=True):
        assert terminal.render(record) == terminal.render(before)
        assert markdown.render(record) == markdown.render(before)
        assert html.contents([record]) == html.contents([before])
