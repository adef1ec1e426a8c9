"""The share of removable communication that a schedule removed."""

from __future__ import annotations

from xbench.stats.removed import removed_share


def test_removed_share() -> None:
    assert removed_share(12.0, 12.0, 10.0) == 0.0
    assert removed_share(10.0, 12.0, 10.0) == 1.0
    assert removed_share(11.5, 12.0, 10.0) == 0.25
    assert removed_share(13.0, 12.0, 10.0) == -0.5
    assert removed_share(9.0, 10.0, 10.0) is None
    assert removed_share(9.0, 9.5, 10.0) is None
    assert removed_share(9.0, 10.001, 10.0) is None


def test_nothing_is_shown_to_be_removable_where_the_reference_s_interval_holds_the_bound() -> None:
    assert removed_share(9.5, 11.0, 10.0, 10.0) is None
    assert removed_share(9.5, 11.0, 10.0, 9.0) is None
    assert removed_share(10.5, 11.0, 10.0, 10.1) == 0.5
