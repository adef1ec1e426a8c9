"""What Horovod's threads get beside those of torch's Gloo."""

from __future__ import annotations

import pytest

from xbench.runtime import carried


@pytest.mark.parametrize(("above", "yielding"), [(False, []), (True, [12, 13])])
def test_horovod_s_own_thread_is_raised_and_its_loops_interrupt_only_a_yielding_computation(
    monkeypatch: pytest.MonkeyPatch, above: bool, yielding: list[int]
) -> None:
    raised: list[int] = []
    batch: list[int] = []
    monkeypatch.setattr(carried, "favour_thread", raised.append)
    monkeypatch.setattr(carried, "is_above_compute", lambda: above)
    monkeypatch.setattr(carried, "yield_on_waking", batch.append)
    carried._favour([11, 12, 13])
    assert (raised, batch) == ([11], yielding)
