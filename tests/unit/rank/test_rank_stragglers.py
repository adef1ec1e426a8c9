"""Names of hosts, and which exchanges of ranks belong to which pair of hosts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from xbench.profilers.host_links import PairTimes
from xbench.rank import stragglers
from xbench.rank.profile_phase import WITH_LOADER
from xbench.rank.stragglers import Place, host_names, links_behind
from xbench.records import CostModel
from xbench.spec import FabricSpec
from xbench.stats.stragglers import OwnSteps

COST = CostModel(backend="gloo", world_size=6, alpha_s=0.0, beta_s_per_byte=1e-8, alpha_ci95=(0.0, 0.0),
                 beta_ci95=(1e-8, 1e-8), max_relative_residual=0.0, points=[])  # fmt: skip
GRAD_BYTES = 100_000_000


def test_hosts_are_named_after_their_machines_where_these_differ() -> None:
    assert host_names([Place(0, "a"), Place(0, "a"), Place(1, "b")]) == {0: "a", 1: "b"}
    assert host_names([Place(1, "b"), Place(0, "a")]) == {0: "a", 1: "b"}
    assert host_names([Place(0, "a"), Place(1, "a")]) == {0: "host 0", 1: "host 1"}


def session(**fields: Any) -> Any:
    made = {"job": 0, "device": None, "clock": None, "note": None, "part": lambda name: None,
            "program": SimpleNamespace(emulated=None),
            "run": SimpleNamespace(fabric=FabricSpec(name="shaped", hosts=3, ranks=2, rate="1gbit"))}  # fmt: skip
    return SimpleNamespace(**made | fields)


def test_the_slower_side_of_a_pair_counts_and_the_first_rank_of_a_host_acts_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = [
        [PairTimes(1, [0.08] * 16, 0.1), PairTimes(2, [0.02] * 16, 0.1)], [],
        [PairTimes(0, [0.01] * 16, 0.1), PairTimes(2, [0.08] * 16, 0.1)], [],
        [PairTimes(0, [0.02] * 16, 0.1), PairTimes(1, [0.01] * 16, 0.1)], [],
    ]  # fmt: skip
    asked: list[tuple[list[int], int]] = []

    def measure(leaders: list[int], nbytes: int, *_: Any) -> str:
        asked.append((leaders, nbytes))
        return "own"

    monkeypatch.setattr(stragglers, "measure_exchanges", measure)
    monkeypatch.setattr(stragglers, "gathered", lambda own: measured)
    places = [Place(rank // 2, "machine") for rank in range(6)]
    (slow,) = links_behind(session(), places, COST, GRAD_BYTES, 1.0)
    assert asked == [([0, 2, 4], 2_000_000)]
    assert slow.hosts == ["host 1"]
    assert (slow.rate_bps, slow.typical_bps) == (pytest.approx(2e8), pytest.approx(8e8))
    assert slow.lag_s == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("places", "fields"),
    [
        ([Place(0, "a"), Place(0, "a")], {}),
        ([Place(0, "a"), Place(1, "b")], {"job": 1}),
        ([Place(0, "a"), Place(1, "b")], {"run": SimpleNamespace(fabric=FabricSpec(name="cluster", hosts=2))}),
        ([Place(0, "a"), Place(1, "b")], {"program": SimpleNamespace(emulated=object())}),
    ],
)
def test_without_links_of_their_own_nothing_is_measured(places: list[Place], fields: dict[str, Any]) -> None:
    assert links_behind(session(**fields), places, COST, GRAD_BYTES, 1.0) == []


def own_steps(*waited: Any) -> list[OwnSteps]:
    """Two ranks whose steps of 1 s take 0.4 s forward and 0.5 s backward, on one batch."""
    return [OwnSteps([1.0] * 8, parts_s={"input": 0.01, "forward": 0.4, "backward": 0.5})] * 2


@pytest.mark.parametrize(("wait_s", "named"), [(0.5, [(1, ["input"])]), (0.0, [])])
def test_steps_with_a_loader_that_works_ahead_name_the_rank_that_waits_for_it(
    wait_s: float, named: list[tuple[int, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stragglers, "own_steps", own_steps)
    places = [Place(0, "a")] * 2
    alone, fed = [[1.0] * 8] * 2, [[1.0] * WITH_LOADER, [1.0 + wait_s] * WITH_LOADER]
    found = stragglers.ranks_behind([], alone, [0.0, 0.0], places, fed)
    assert [(slow.rank, slow.parts) for slow in found] == named
    assert stragglers.ranks_behind([], alone, [0.0, 0.0], places) == []  # the steps on one batch show nothing
    moment = [[1.0] * WITH_LOADER, [1.5] * (WITH_LOADER - 5) + [1.0] * 5]
    assert stragglers.ranks_behind([], alone, [0.0, 0.0], places, moment) == []  # the last steps must confirm it
