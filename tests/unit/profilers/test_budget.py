from __future__ import annotations

import pytest

from xbench.errors import SpecError
from xbench.profilers.budget import share


def test_the_share_of_the_budgets_is_a_number_up_to_one() -> None:
    assert share({}) == share({"XBENCH_PROFILE_SHARE": ""}) == 1.0
    assert share({"XBENCH_PROFILE_SHARE": "0.1"}) == 0.1
    for wrong in ("0", "-1", "1.5", "nan", "inf", "a tenth"):
        with pytest.raises(SpecError, match="must be above 0 and at most 1"):
            share({"XBENCH_PROFILE_SHARE": wrong})
