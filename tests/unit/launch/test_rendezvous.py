"""Assignment of given ranks to hosts and devices, over a fake store and without torch."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from launch_world import Store

from xbench.errors import RankError, SpecError
from xbench.fabrics.cluster import ClusterRank
from xbench.launch import rendezvous
from xbench.launch.rendezvous import RankInfo, assignments, choose_interface, join
from xbench.rank.store import FileStore, TorchStore


def rank(number: int, world: int) -> ClusterRank:
    return ClusterRank("mpirun", number, world, number, world)


def here(number: int, host: str = "a", address: str | None = "10.0.0.1") -> RankInfo:
    return RankInfo(number, host, host, address)


def test_every_rank_learns_every_seat() -> None:
    store = Store()
    store.set("here/1", json.dumps(asdict(here(1))))
    zero = join(store, rank(0, 2), here(0), patience_s=1.0)
    assert zero == assignments([here(0), here(1)])
    assert join(store, rank(1, 2), here(1), patience_s=1.0) == zero


def test_a_rank_that_does_not_come_is_named() -> None:
    store = Store()
    with pytest.raises(RankError, match=r"^rank 1 and 1 more of 3 did not come within 0 s$"):
        join(store, rank(0, 3), here(0), patience_s=0.0)
    with pytest.raises(SpecError, match="rank 1 and 1 more of 3 did not come"):  # whoever comes late learns it
        join(store, rank(1, 3), here(1), patience_s=0.0)


def test_ranks_that_an_old_run_s_variables_promise_are_told_with_what_to_unset() -> None:
    stale = replace(rank(0, 2), bare=True)
    with pytest.raises(RankError) as caught:
        join(Store(), stale, here(0), patience_s=0.0)
    assert caught.value.hint == "if no engine started them, unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT"


def test_a_rank_that_cannot_take_part_is_named_with_its_reason() -> None:
    store = Store()
    store.set("here/1", json.dumps({"cannot": "no data here", "hint": "fetch it", "name": "node1"}))
    with pytest.raises(RankError, match=r"^rank 1 on node1 cannot take part: no data here\n") as caught:
        join(store, rank(0, 2), here(0), patience_s=1.0)
    assert caught.value.hint == "fetch it"


def test_the_user_s_interface_is_kept_and_else_the_one_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(rendezvous, "chosen_interface", lambda own, others: asked.append((own, others)) or "eth7")
    store = Store()
    for one in (here(0, "a", "127.0.1.1"), here(1, "a", "127.0.1.1"), here(2, "b", "10.0.0.2")):
        store.set(f"here/{one.rank}", json.dumps(asdict(one)))
    own = here(0, "a", "127.0.1.1")
    assert choose_interface(own, store, 3, {"GLOO_SOCKET_IFNAME": "ib0"}) is None
    environ: dict[str, str] = {"TP_SOCKET_IFNAME": "ib0"}
    assert choose_interface(own, store, 3, environ) == "eth7"
    assert environ == {"GLOO_SOCKET_IFNAME": "eth7", "TP_SOCKET_IFNAME": "ib0"}
    assert asked == [("127.0.1.1", ["10.0.0.2"])]


def test_notes_in_a_folder_and_at_a_store_are_alike(tmp_path: Path) -> None:
    for board in (FileStore(tmp_path), TorchStore(Store())):
        assert not board.has("plan0.json")
        board.put("plan0.json", "{}")
        board.put("plan0.json", "[]")
        assert board.has("plan0.json")
        assert board.get("plan0.json") == "[]"
    assert [path.name for path in tmp_path.iterdir()] == ["plan0.json"]


def test_the_ranks_of_a_host_have_its_devices_in_their_order() -> None:
    for hosts, expected in (("aabb", [(0, 0), (0, 1), (1, 0), (1, 1)]), ("abab", [(0, 0), (1, 0), (0, 1), (1, 1)])):
        found = assignments([here(number, host) for number, host in enumerate(hosts)])
        assert [(one.host, one.device) for one in found] == expected
        assert [(one.host_name, one.devices) for one in found] == [(host, 2) for host in hosts]
