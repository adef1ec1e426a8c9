"""Drawings of cells: fixed by their seed, balanced, and the one of the committed matrix."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.errors import SpecError
from xbench.fabrics import parse_fabric
from xbench.runs.validation_places import MatrixCell, draw, whole_matrix
from xbench.spec import WorkloadSpec

RATES = ("300mbit", "1gbit", "3gbit", "10gbit")
WORKLOADS = [WorkloadSpec(name=name, batch_size=size) for name in "abcd" for size in (2, 4, 8)]
FABRICS = [parse_fabric(f"shaped:hosts={hosts},rate={rate}") for hosts in (2, 2, 2, 3, 4) for rate in RATES]


def test_a_whole_matrix_goes_fabric_by_fabric() -> None:
    cells = whole_matrix(WORKLOADS[:2], FABRICS[:2])
    assert cells == [MatrixCell(workload, fabric) for fabric in FABRICS[:2] for workload in WORKLOADS[:2]]


@given(st.integers(0, 1000))
def test_a_drawing_is_balanced_and_a_quarter_of_it_held_out(seed: int) -> None:
    cells = draw(WORKLOADS, FABRICS, 24, seed)
    assert len({(cell.workload, cell.fabric) for cell in cells}) == 24
    assert set(Counter(cell.workload for cell in cells).values()) == {2}
    assert set(Counter(cell.fabric.rate for cell in cells).values()) <= {5, 6, 7}
    assert Counter(cell.fabric.hosts for cell in cells) == {2: 14, 3: 5, 4: 5}
    assert max(Counter((cell.workload.name, cell.fabric.rate) for cell in cells).values()) == 2
    assert sum(cell.held_out for cell in cells) == 6


def test_a_seed_draws_the_same_cells_again_and_another_draws_others() -> None:
    assert draw(WORKLOADS, FABRICS, 24, 5) == draw(WORKLOADS, FABRICS, 24, 5)
    assert draw(WORKLOADS, FABRICS, 24, 5) != draw(WORKLOADS, FABRICS, 24, 6)


def test_all_cells_can_be_drawn_and_no_more() -> None:
    assert len(set(draw(WORKLOADS[:2], FABRICS[:2], 4, 0))) == 4
    with pytest.raises(SpecError, match="5 cells cannot be drawn from the 4 of --workloads, --rates and --hosts"):
        draw(WORKLOADS[:2], FABRICS[:2], 5, 0)
