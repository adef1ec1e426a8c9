"""The ranks' store listens at the address by which ranks reach it, and nowhere else."""

from __future__ import annotations

import os
from datetime import timedelta

import psutil
import pytest

from xbench.rank.store import rank_store

TIMEOUT = timedelta(seconds=20)


def listening() -> set[tuple[str, int]]:
    """(address, port) on which this process listens."""
    return {
        (one.laddr.ip, one.laddr.port)
        for one in psutil.Process().net_connections("tcp")
        if one.status == psutil.CONN_LISTEN
    }


@pytest.mark.parametrize("multi_tenant", [False, True])
def test_the_store_listens_on_its_address_alone(multi_tenant: bool) -> None:
    before = listening()
    store = rank_store("127.0.0.1", 0, TIMEOUT, serves=True, multi_tenant=multi_tenant)
    assert listening() - before == {("127.0.0.1", store.port)}
    other = rank_store("127.0.0.1", store.port, TIMEOUT, serves=False)
    other.set("key", "value")
    assert store.get("key") == b"value"
    with pytest.raises(OSError, match="Address already in use"):
        rank_store("127.0.0.1", store.port, TIMEOUT, serves=True)
    files = len(os.listdir("/proc/self/fd"))
    del other, store
    assert len(os.listdir("/proc/self/fd")) < files
    assert listening() == before


def test_ranks_of_other_hosts_reach_a_store_that_is_told_loopback() -> None:
    before = listening()
    store = rank_store("127.0.0.1", 0, TIMEOUT, serves=True, one_host=False)
    assert {address for address, _ in listening() - before} <= {"::", "0.0.0.0"}
    assert store.port in {port for _, port in listening() - before}
