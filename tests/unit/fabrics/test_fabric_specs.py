import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench import fabrics
from xbench.errors import SpecError
from xbench.fabrics import FABRICS, choose, parse_fabric, rootless, shaped
from xbench.fabrics.cluster import cluster_rank
from xbench.spec import FabricSpec

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("auto", FabricSpec(name="auto")),
        ("cluster", FabricSpec(name="cluster")),
        ("local", FabricSpec(name="local", ranks=2)),
        ("local:ranks=1", FabricSpec(name="local", ranks=1)),
        ("local:ranks=16", FabricSpec(name="local", ranks=16)),
        ("shaped", FabricSpec(name="shaped", hosts=2, rate="1gbit")),
        ("shaped:rate=317Mbit", FabricSpec(name="shaped", hosts=2, rate="317mbit")),
        ("shaped:hosts=8,rate=10gbit,ranks=2", FabricSpec(name="shaped", hosts=8, ranks=2, rate="10gbit")),
        ("shaped:hosts=2,rate=100gbit", FabricSpec(name="shaped", hosts=2, rate="100gbit")),
        ("shaped:rate=1mbit", FabricSpec(name="shaped", hosts=2, rate="1mbit")),
        ("shaped:rate=125mbps", FabricSpec(name="shaped", hosts=2, rate="125mbps")),
    ],
)
def test_a_fabric_parses(text, spec):
    assert parse_fabric(text) == spec
    assert parse_fabric(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "sentence", "hint"),
    [
        ("shaped:hosts=9", "a shaped fabric needs 2 to 8 hosts, and 'shaped:hosts=9' asks for 9", "hosts=8"),
        ("shaped:hosts=two", "'shaped:hosts=two': hosts=two is not a whole number", "2 to 8"),
        ("shaped:rate=fast", "'fast' is not a rate", "1gbit"),
        ("shaped:rate=0gbit", "the rate '0gbit' is not above zero", "1gbit"),
        ("shaped:rate=999kbit", "is out of range 1mbit to 100gbit", "rate=1mbit"),
        ("shaped:rate=101gbit", "is out of range 1mbit to 100gbit", "rate=100gbit"),
        ("shaped:ranks=17", "ranks=17 is out of range 1 to 16", "ranks=16"),
        ("local:hosts=2", "unknown option 'hosts'", "it takes ranks"),
        ("shaped:rat=1gbit", "unknown option 'rat'", "did you mean 'rate'?"),
        ("auto:ranks=2", "unknown option 'ranks'", "no options"),
        ("cluster:hosts=2", "unknown option 'hosts'", "no options"),
        ("shapd:hosts=2", "unknown fabric 'shapd'", "did you mean 'shaped'?"),
        ("zzz", "unknown fabric 'zzz'", "auto, local, shaped, emulated, cluster"),
    ],
)
def test_a_wrong_fabric_is_refused_in_one_sentence(text, sentence, hint):
    with pytest.raises(SpecError) as caught:
        parse_fabric(text)
    assert sentence in str(caught.value)
    assert hint in (caught.value.hint or "")


@given(st.text(max_size=40) | st.from_regex(r"(shaped|local|cluster|auto)(:(hosts|rate|ranks)=\w{0,9},?){0,3}"))
def test_any_text_is_a_spec_or_a_spec_error(text):
    try:
        spec = parse_fabric(text)
    except SpecError:
        return
    assert spec.name in FABRICS.names()
    assert parse_fabric(str(spec)) == spec


@pytest.fixture
def machine(monkeypatch):
    """Set what the machine allows: machine(shaped=None or why not, rootless=None or why not, root=True)."""

    def allow(*, shaped_why, rootless_why="user namespaces are forbidden here", root=True, tools=True):
        monkeypatch.setattr(shaped, "obstacle", lambda: shaped_why)
        monkeypatch.setattr(rootless, "obstacle", lambda: rootless_why)
        monkeypatch.setattr(fabrics, "links_missing", lambda: not tools)
        monkeypatch.setattr("os.geteuid", lambda: 0 if root else 1000)
        monkeypatch.delenv("XBENCH_ROOTLESS", raising=False)

    return allow


def test_auto_takes_all_gpus_when_there_are_several(machine):
    machine(shaped_why=None)
    assert choose(FabricSpec(name="auto"), 4, {})[0] == FabricSpec(name="local", ranks=4)
    assert choose(FabricSpec(name="auto"), 32, {})[0] == FabricSpec(name="local", ranks=16)


def test_auto_is_shaped_where_that_works(machine):
    machine(shaped_why=None)
    assert choose(FabricSpec(name="auto"), 0, {})[0] == FabricSpec(name="shaped", hosts=2, rate="1gbit")


def test_auto_emulates_the_link_of_a_lone_gpu(machine):
    machine(shaped_why=None)
    fabric, why = choose(FabricSpec(name="auto"), 1, {})
    assert fabric == parse_fabric("emulated")
    assert "--device cpu" in why


def test_auto_without_root_is_shaped_in_a_user_namespace(machine):
    machine(shaped_why="network namespaces need root", rootless_why=None, root=False)
    spec, reason = choose(FabricSpec(name="auto"), 0, {})
    assert spec == FabricSpec(name="shaped", hosts=2, rate="1gbit")
    assert reason.endswith("in a user namespace, without root")
    assert rootless.reexec_needed(spec, {})
    assert not rootless.reexec_needed(spec, {"XBENCH_ROOTLESS": "1"})
    assert not rootless.reexec_needed(FabricSpec(name="local", ranks=2), {})


def test_auto_says_what_it_would_have_shown(machine):
    machine(shaped_why="network namespaces need root", root=False)
    spec, reason = choose(FabricSpec(name="auto"), 0, {})
    assert spec == FabricSpec(name="local", ranks=2)
    assert "because network namespaces need root, and user namespaces are forbidden here" in reason
    assert "two hosts on links held to 1 Gbit/s" in reason
    assert "apt-get install iproute2" in reason


def test_without_iproute2_no_user_namespace_is_tried(machine):
    machine(shaped_why="iproute2 is not installed (ip is missing)", rootless_why=None, root=False, tools=False)
    spec, reason = choose(FabricSpec(name="auto"), 0, {})
    assert spec == FabricSpec(name="local", ranks=2)
    assert "because iproute2 is not installed (ip is missing);" in reason


def test_shaped_where_it_cannot_work_is_refused_before_anything_starts(machine):
    machine(shaped_why="iproute2 is not installed (tc is missing)", tools=False)
    with pytest.raises(
        SpecError, match="'shaped:hosts=2,rate=1gbit' cannot be raised: iproute2 is not installed"
    ) as caught:
        choose(parse_fabric("shaped"), 0, {})
    assert "--fabric local:ranks=2" in caught.value.hint


def test_local_stays_as_asked_for(machine):
    machine(shaped_why=None)
    spec = FabricSpec(name="local", ranks=3)
    assert choose(spec, 8, {})[0] == spec


def test_cluster_reads_torchruns_variables():
    ours = cluster_rank({**TORCHRUN, "LOCAL_WORLD_SIZE": "2"})
    assert (ours.rank, ours.world_size, ours.local_rank, ours.hosts) == (3, 4, 1, 2)
    assert choose(FabricSpec(name="cluster"), 0, TORCHRUN)[0] == FabricSpec(name="cluster", hosts=4, ranks=1)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("RANK", "x", "RANK='x' is not a whole number of 0 or more"),
        ("RANK", "4", "RANK=4 is not below WORLD_SIZE=4"),
        ("WORLD_SIZE", "0", "WORLD_SIZE='0' is not a whole number of 1 or more"),
        ("MASTER_PORT", "70000", "MASTER_PORT='70000' is not a whole number of 1 to 65535"),
        ("LOCAL_WORLD_SIZE", "5", "LOCAL_WORLD_SIZE='5' is not a whole number of 1 to 4"),
    ],
)
def test_cluster_names_the_variable_that_is_wrong(name, value, sentence):
    with pytest.raises(SpecError) as caught:
        cluster_rank({**TORCHRUN, name: value})
    assert sentence in str(caught.value)


def test_a_cluster_fabric_starts_nothing_itself():
    with fabrics.open_fabric(choose(FabricSpec(name="cluster"), 0, TORCHRUN)[0]) as fabric:
        assert fabric.hosts == []
        assert fabric.measure_bandwidth() is None
        assert fabric.describe("nccl").world_size == 4


def test_auto_cannot_be_opened():
    with pytest.raises(SpecError, match="resolved"), fabrics.open_fabric(FabricSpec(name="auto")):
        pass


def test_the_inner_command_repeats_ours(monkeypatch):
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    assert rootless.inner_command(["/bin/xbench", "compare"]) == [sys.executable, "/bin/xbench", "compare"]

    class Module:
        name = "xbench.__main__"

    monkeypatch.setattr(main, "__spec__", Module())
    assert rootless.inner_command(["/x/__main__.py", "compare"]) == [sys.executable, "-m", "xbench", "compare"]
