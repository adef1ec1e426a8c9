"""Where ranks meet when their engine does not say, and over which interface."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.errors import SpecError
from xbench.fabrics import cluster as meeting
from xbench.fabrics.cluster import LOOPBACK, ClusterRank, chosen_interface, expanded, interface_of, meeting_point

ONE_HOST = ClusterRank("mpirun", 1, 2, 1, 2)
TWO_HOSTS = ClusterRank("mpirun", 1, 4, 1, 2)
OF_SRUN = ClusterRank("srun", 1, 4, 1, 2, 0)


def test_what_the_environment_names_is_taken() -> None:
    said = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
    for ours in (ONE_HOST, TWO_HOSTS, OF_SRUN):
        assert meeting_point(ours, said) == ("node0", 29500)


def test_ranks_of_one_host_meet_there_and_jobs_do_not_meet_each_other() -> None:
    first = meeting_point(ONE_HOST, {"PMIX_NAMESPACE": "prterun-a@1"})
    assert first == meeting_point(ONE_HOST, {"PMIX_NAMESPACE": "prterun-a@1"})
    second = meeting_point(ONE_HOST, {"OMPI_MCA_ess_base_jobid": "1234"})
    assert first[0] == second[0] == LOOPBACK
    assert first[1] != second[1]
    assert {20000 <= port < 30000 for _, port in (first, second)} == {True}
    assert meeting_point(ONE_HOST, {"MASTER_PORT": "29501"}) == (LOOPBACK, 29501)


def test_mpirun_on_several_hosts_needs_an_address() -> None:
    with pytest.raises(SpecError, match="does not tell the 4 ranks on several hosts how to reach rank 0") as caught:
        meeting_point(TWO_HOSTS, {"PMIX_NAMESPACE": "x"})
    assert caught.value.hint == "name the first host: mpirun -x MASTER_ADDR=node0 …"


def test_srun_s_first_host_is_rank_0_s() -> None:
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_JOB_NODELIST": "a"}
    address, port = meeting_point(OF_SRUN, step)
    assert address == "gpu07"
    assert port == meeting_point(OF_SRUN, step)[1]
    assert port != meeting_point(OF_SRUN, step | {"SLURM_STEP_ID": "2"})[1]
    with pytest.raises(SpecError, match="lacks SLURM_STEP_NODELIST"):
        meeting_point(OF_SRUN, {"SLURM_JOB_ID": "7"})


@pytest.mark.parametrize(
    ("nodes", "hosts"),
    [
        ("node", ["node"]),
        ("node[01-03,7]", ["node01", "node02", "node03", "node7"]),
        ("a1,b[2,4-5],c-x", ["a1", "b2", "b4", "b5", "c-x"]),
        ("r[1-2]n[09-10]", ["r1n09", "r1n10", "r2n09", "r2n10"]),
        ("n[1-2].lan", ["n1.lan", "n2.lan"]),
    ],
)
def test_a_slurm_list_of_hosts(nodes: str, hosts: list[str]) -> None:
    assert expanded(nodes) == hosts


@pytest.mark.parametrize("nodes", ["", "n[1-", "n[a-b]", "n[]", ",", "n]1["])
def test_what_is_no_list_of_hosts_is_refused(nodes: str) -> None:
    with pytest.raises(SpecError, match="is not a list of hosts"):
        expanded(nodes)


@given(st.text(alphabet="ab1-[],", max_size=12))
def test_any_text_is_hosts_or_one_sentence(nodes: str) -> None:
    with suppress(SpecError):
        assert all(expanded(nodes))


def test_an_interface_is_known_by_its_address() -> None:
    listing = {
        "lo": [SimpleNamespace(address="127.0.0.1")],
        "eth1": [SimpleNamespace(address="fe80::1%eth1"), SimpleNamespace(address="10.0.0.5")],
    }
    assert interface_of("10.0.0.5", lambda: listing) == "eth1"
    assert interface_of("fe80::1", lambda: listing) == "eth1"
    assert interface_of("10.0.0.6", lambda: listing) is None


def test_the_interface_leads_to_rank_0_and_from_it_to_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "interface_of", lambda address: f"has {address}")
    monkeypatch.setattr(meeting, "address_towards", lambda target: f"own towards {target}")
    assert chosen_interface("10.0.0.5", []) == "has 10.0.0.5"
    assert chosen_interface("127.0.1.1", ["127.0.0.1", "10.0.0.6"]) == "has own towards 10.0.0.6"
    assert chosen_interface("127.0.1.1", []) is None  # all on one host: Gloo's own choice
    assert chosen_interface(None, []) is None
