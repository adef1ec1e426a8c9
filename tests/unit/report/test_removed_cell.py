"""The column `removed` holds a share of what can be removed, or says that it is none."""

from __future__ import annotations

import pytest

from xbench.report.answer import removed_cell


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (None, "–"), (0.0, "0 %"), (0.62, "62 %"), (1.0, "100 %"), (-2.26, "< 0 %"), (1.62, "> 100 %"),
    ],
)  # fmt: skip
def test_a_share_is_between_nothing_and_all(share: float | None, shown: str) -> None:
    assert removed_cell(share) == shown
