import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.fabrics import open_fabric
from xbench.fabrics.fabric import available_cores, hyper_threads, split_cores
from xbench.limits import cpu_quota, usable_cores
from xbench.spec import FabricSpec


@pytest.mark.parametrize(
    ("cores", "hosts", "ranks", "shares"),
    [
        ([0, 1], 2, 1, [[[0]], [[1]]]),
        ([0, 4, 1, 5], 2, 1, [[[0, 4]], [[1, 5]]]),
        ([0, 1, 2, 3, 4], 2, 1, [[[0, 1]], [[2, 3]]]),
        ([0, 1, 2, 3], 2, 2, [[[0], [1]], [[2], [3]]]),
        ([0, 1], 3, 1, [[[0]], [[0]], [[1]]]),
        ([0, 1], 2, 2, [[[0], [0]], [[1], [1]]]),
        ([0, 1], 4, 1, [[[0]], [[0]], [[1]], [[1]]]),
        ([7], 2, 2, [[[7], [7]], [[7], [7]]]),
    ],
)
def test_cores_are_split_evenly(cores, hosts, ranks, shares):
    assert split_cores(cores, hosts, ranks)[0] == shares


def test_a_shortage_of_cores_is_told():
    assert split_cores([0, 1], 2, 1)[1] is None
    assert "3 ranks share 2 cores" in split_cores([0, 1], 3, 1)[1]
    assert "2 ranks share 1 core:" in split_cores([0], 1, 2)[1]


@pytest.mark.parametrize(("cores", "hosts", "ranks"), [([], 2, 1), ([0], 0, 1), ([0], 1, 0)])
def test_nothing_to_split_is_a_programming_error(cores, hosts, ranks):
    with pytest.raises(ValueError, match="cannot split"):
        split_cores(cores, hosts, ranks)


@given(st.sets(st.integers(0, 500), min_size=1, max_size=64), st.integers(1, 8), st.integers(1, 16))
def test_no_core_is_shared_while_there_are_enough(cores, hosts, ranks):
    shares, warning = split_cores(sorted(cores), hosts, ranks)
    flat = [core for host in shares for rank in host for core in rank]
    assert [len(host) for host in shares] == [ranks] * hosts
    assert len({len(rank) for host in shares for rank in host}) == 1
    assert set(flat) <= cores
    assert (warning is None) == (len(cores) >= hosts * ranks)
    if warning is None:
        assert len(flat) == len(set(flat))
        assert len(cores) - len(flat) < hosts * ranks
    else:
        loads = [flat.count(core) for core in cores]
        assert max(loads) - min(loads) <= 1


def test_hyper_threads_of_a_core_stand_side_by_side(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr("xbench.fabrics.fabric.cpu_quota", lambda: None)
    for core, physical in enumerate([0, 1, 0, 1]):
        folder = tmp_path / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text("0\n")
        (folder / "core_id").write_text(f"{physical}\n")
    assert available_cores(tmp_path) == [0, 2, 1, 3]
    assert hyper_threads([0, 1, 2, 3], tmp_path) == 2
    monkeypatch.setattr("xbench.fabrics.fabric.cpu_quota", lambda: 3)
    monkeypatch.setattr("socket.gethostname", lambda: "a")
    assert len(available_cores(tmp_path)) == 3
    assert hyper_threads(available_cores(tmp_path), tmp_path) == 2
    monkeypatch.setattr("xbench.fabrics.fabric.cpu_quota", lambda: 2)
    assert hyper_threads(available_cores(tmp_path), tmp_path) == 1


def test_containers_of_one_machine_use_different_cores(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setattr("xbench.fabrics.fabric.cpu_quota", lambda: 2)
    chosen = []
    for name in ("a", "b"):
        monkeypatch.setattr("socket.gethostname", lambda name=name: name)
        chosen.append(available_cores(tmp_path))
        assert available_cores(tmp_path) == chosen[-1]
    assert not set(chosen[0]) & set(chosen[1])


def test_ranks_get_whole_physical_cores():
    six = [core for pair in zip(range(6), range(6, 12), strict=True) for core in pair]
    shares, warning = split_cores(six, 1, 4, 2)
    assert shares == [[[0, 6], [1, 7], [2, 8], [3, 9]]]
    assert warning is None
    assert split_cores(six, 1, 8, 2)[0][0][:3] == [[0], [6], [1]]


V1 = {"controller": "cpu"}


def v1(group: str, quota: str) -> dict[str, str]:
    return {f"{group}cpu.cfs_quota_us": f"{quota}\n", f"{group}cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("files", "where", "cores"),
    [
        ({"cpu.max": "400000 100000\n"}, {}, 4),
        ({"cpu.max": "250000 100000\n"}, {}, 2),
        ({"cpu.max": "50000 100000\n"}, {}, 1),
        ({"cpu.max": "max 100000\n"}, {}, None),
        ({"cpu.max": "0 0\n"}, {}, None),
        ({}, {}, None),
        (v1("", "300000"), V1, 3),
        (v1("", "-1"), V1, None),
        # a service in a slice: each of them, and no other group, counts
        ({"a.slice/b.service/cpu.max": "200000 100000"}, {"group": "/a.slice/b.service"}, 2),
        ({"a.slice/cpu.max": "100000 100000", "a.slice/b/cpu.max": "max 100000"}, {"group": "/a.slice/b"}, 1),
        ({"a/cpu.max": "300000 100000", "a/b/cpu.max": "200000 100000"}, {"group": "/a/b"}, 2),
        ({"other/cpu.max": "100000 100000"}, {"group": "/a"}, None),
        (v1("a/b/", "100000") | v1("a/", "-1"), V1 | {"group": "/a/b"}, 1),
        # a container of v1 sees its own group as the top, and /proc names it from the machine's
        (v1("", "200000"), V1 | {"group": "/docker/4f", "top": "/docker/4f"}, 2),
        (v1("in/", "100000") | v1("", "200000"), V1 | {"group": "/docker/4f/in", "top": "/docker/4f"}, 1),
        (v1("", "200000"), V1 | {"group": "/docker/4f2", "top": "/docker/4f"}, 2),
        (v1("", "200000"), {"controller": "cpuset", "group": "/a"}, None),
        ({"cpu.max": "100000 100000"}, {"group": "/../outside"}, None),
    ],
)
def test_the_tightest_quota_of_all_control_groups_is_whole_cores(fake_groups, files, where, cores):
    assert cpu_quota(fake_groups(files, **where)) == cores


def test_without_control_groups_there_is_no_quota(tmp_path):
    assert cpu_quota(tmp_path) is None


def test_no_more_cores_are_used_than_the_quota_is_worth(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setattr("xbench.limits.cpu_quota", lambda: 4)
    assert usable_cores() == 4
    monkeypatch.setattr("xbench.limits.cpu_quota", lambda: None)
    assert usable_cores() == 64


def test_a_kernel_without_topology_gives_plain_order(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3, 1, 2})
    monkeypatch.setattr("xbench.fabrics.fabric.cpu_quota", lambda: None)
    assert available_cores(tmp_path) == [1, 2, 3]


def test_a_local_fabric_pins_its_ranks(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    with open_fabric(FabricSpec(name="local", ranks=2)) as fabric:
        (host,) = fabric.hosts
        assert sorted(sum(host.cores, ())) == [0, 1, 2, 3]
        assert [len(rank) for rank in host.cores] == [2, 2]
        assert host.env["OMP_NUM_THREADS"] == host.env["MKL_NUM_THREADS"] == "2"
        assert host.env["GLOO_SOCKET_IFNAME"] == "lo"
        assert host.prefix[-2:] == ("-c", "0,1,2,3")
        assert fabric.warnings == []
        record = fabric.describe()
        assert record.cores_per_rank == [list(rank) for rank in host.cores]
        assert (record.rate_bps, record.measured_bps, record.world_size) == (None, None, 2)
        assert len(set(fabric.free_ports(3))) == 3


def test_a_local_fabric_of_gpus_pins_nothing():
    with open_fabric(FabricSpec(name="local", ranks=2), device="cuda") as fabric:
        (host,) = fabric.hosts
        assert host.cores == ()
        assert host.prefix == ()
        assert "OMP_NUM_THREADS" not in host.env
