"""T(M) from files of other tools: the rows that they print, and one sentence for any other file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from xbench.commands.plan import plan
from xbench.errors import RecordError, SpecError, UsageError
from xbench.fabrics import parse_fabric
from xbench.fabrics.emulated import link_of
from xbench.records import AnyRecord, Profile, Scaling, loads
from xbench.traces.link import LinkTimes, link_cost, read_link

RANK = "#  Rank {0:2} Group  0 Pid  1234 on  node{1} device  {2} [0000:04:00] NVIDIA H100\n"


def ranks_to(count: int) -> str:
    """The lines of ranks 0 to `count` - 1, two a node."""
    return "".join(RANK.format(rank, rank // 2, rank % 2) for rank in range(count))


RANKS = ranks_to(4)
HEAD = "# Collective test starting: all_reduce_perf\n# nThread 1 nGpus 1 minBytes 8\n#\n# Using devices\n" + RANKS
TAIL = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 191.494\n"
NEW = """\
        1024           256     float     sum      -1    40.00    0.03    0.04       0    35.00    0.03    0.04       0
     1048576        262144     float     sum      -1   135.39    7.74   11.62       0   134.00    7.82   11.74       0
   268435456      67108864     float     sum      -1  7013.27   38.28   57.41       0  7013.56   38.27   57.41       0
"""
ONE_SIDED = """\
        1024           256     float     sum      -1    35.00    0.03    0.04       0
     1048576        262144     float     sum      -1   134.00    7.82   11.74       0
"""
WITHOUT_ROOT = """\
        1024           256     float     sum    40.00    0.03    0.04  0e+00    35.00    0.03    0.04  0e+00
     1048576        262144     float     sum   135.39    7.74   11.62  2e-07   134.00    7.82   11.74    N/A
"""
WITH_TIMESTAMP = """\
        1024           256     float     sum      -1    40.00    0.03    0.04     N/A    35.00    0.03    0.04     N/A 2025-10-17 03:31:47
     1048576        262144     float     sum      -1   135.39    7.74   11.62     N/A   134.00    7.82   11.74     N/A 2025-10-17 03:31:48
"""  # noqa: E501


ROWS = """\
          32             8     float     sum      -1    35.00    0.00    0.00       0
     1048576        262144     float     sum      -1   134.00    {}    {}       0
"""


def read(folder: Path, text: str) -> LinkTimes:
    """The link that a file of this text in the folder holds."""
    path = folder / "log.txt"
    path.write_text(text, encoding="utf-8")
    return read_link(path)


def labelled(text: str, label: Callable[[int], str]) -> str:
    return "".join(label(number) + line for number, line in enumerate(text.splitlines(keepends=True)))


LABELS: dict[str, Callable[[int], str]] = {
    "mpirun --tag-output": lambda number: "[1,0]<stdout>:",
    "srun -l": lambda number: "0: ",
    "kubectl --timestamps": lambda number: f"2026-03-01T10:00:00.{number}Z ",
    "docker compose": lambda number: "worker-0  | ",
    "pdsh and ts": lambda number: f"node1: Mar 01 10:00:{number:02} ",
    "epoch": lambda number: f"{1760671907 + number} ",
}


@pytest.mark.parametrize("label", LABELS.values(), ids=list(LABELS))
def test_a_launchers_label_before_each_line_changes_nothing(tmp_path: Path, label: Callable[[int], str]) -> None:
    bare = HEAD + NEW + TAIL
    assert read(tmp_path, labelled(f"NCCL_DEBUG=WARN, and a comma\n{bare}", label)) == read(tmp_path, bare)
    with pytest.raises(UsageError, match="is of alltoall"):
        read(tmp_path, labelled(bare.replace("all_reduce", "alltoall"), label))


AGGREGATED = "# nThread 1 nGpus 1 iters: 20 agg iters: {} validation: 1 graph: 0\n"


@pytest.mark.parametrize(
    ("content", "why", "hint"),
    [
        (HEAD + NEW.replace("134.00", "4.10"), "row of 1048576 B contradicts itself", "-C 1"),
        (HEAD + NEW.replace("134.00    7.82   11.74       0", "134.00    7.82   11.74       7"),
         "row of 1048576 B has 7 wrong values", "repair"),
        (HEAD + NEW.replace("7.74   11.62       0", "7.74   11.62       5"), "has 5 wrong values", "repair"),
        (AGGREGATED.format(16) + HEAD + NEW, "times of several all-reduces at once", "without -m"),
        ("# Blocking Enabled: wait for completion and barrier after each collective \n" + HEAD + NEW,
         "the host's wait after each", "without -z"),
        ("#  size  count  type  redop  root  cputime  algbw  busbw  #wrong\n" + HEAD + NEW, "on the CPU", "without -C"),
        ('{"config": {"aggregated_iterations": 4}, "results": []}', "several all-reduces at once", "without -m"),
        ('{"config": {"blocking_collectives": true}, "results": []}', "wait after each", "without -z"),
        ('{"results": [{"size": 1048576, "in_place": {"time": 4.1, "alg_bw": 7.82}}]}', "contradicts itself", "-C 1"),
        ('{"results": [{"size": 8, "in_place": {"time": 4.1, "nwrong": 2}}]}', "has 2 wrong values", "repair"),
    ],
)  # fmt: skip
def test_times_that_are_not_those_of_a_right_all_reduce_are_refused(
    tmp_path: Path, content: str, why: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        read(tmp_path, content)
    assert hint in str(caught.value.hint)


def test_bandwidths_of_two_decimals_tell_nothing_of_small_sizes(tmp_path: Path) -> None:
    found = read(tmp_path, ranks_to(8) + "1024 256 float sum -1 35.00 0.03 0.06 0\n")
    assert found.seconds == {1024: [pytest.approx(35e-6)]}


def test_usual_values_of_a_header_say_nothing(tmp_path: Path) -> None:
    config = {"aggregated_iterations": 1, "blocking_collectives": False, "graph": 4}
    assert read(tmp_path, AGGREGATED.format(1) + HEAD + NEW).world_size == 4
    results = [{"size": 1048576, "in_place": {"time": 134.0, "alg_bw": 7.825, "bus_bw": 11.74, "nwrong": 0}}]
    found = read(tmp_path, json.dumps({"config": config, "results": results}))
    assert found.seconds == {1048576: [pytest.approx(134e-6)]}


@pytest.mark.parametrize("rows", [NEW, ONE_SIDED, WITHOUT_ROOT, WITH_TIMESTAMP])
def test_every_layout_of_nccl_tests_gives_in_place_times(tmp_path: Path, rows: str) -> None:
    found = read(tmp_path, "mpirun says hello\n" + HEAD + rows + TAIL)
    assert found.world_size == 4
    assert found.seconds[1024] == [pytest.approx(35e-6)]
    assert found.seconds[1048576] == [pytest.approx(134e-6)]


def test_the_json_of_nccl_tests(tmp_path: Path) -> None:
    def row(size: int, micros: float) -> dict[str, object]:
        return {"size": size, "out_of_place": {"time": 2 * micros}, "in_place": {"time": micros, "alg_bw": "nan"}}

    path = tmp_path / "log.json"
    devices = [{"rank": rank, "hostname": "node0"} for rank in range(8)]
    results = [row(1024, 35.0), row(1048576, 134.0), {"size": 4, "out_of_place": None, "in_place": None}]
    document = {"version": 2, "args": ["./build/all_reduce_perf"], "config": {"devices": devices}, "results": results}
    path.write_text(json.dumps(document), encoding="utf-8")
    model = link_cost([path])
    assert (model.world_size, model.backend) == (8, "nccl")
    assert [(point.nbytes, point.transfer_s) for point in model.points] == [
        (1024, pytest.approx(35e-6)),
        (1048576, pytest.approx(134e-6)),
    ]


def test_the_inspectors_last_rank_of_a_collective_shows_the_transfer(tmp_path: Path) -> None:
    def line(rank: int, number: int, size: int, micros: int, coll: str = "AllReduce") -> str:
        perf = {"coll": coll, "coll_sn": number, "coll_msg_size_bytes": size, "coll_exec_time_us": micros}
        return json.dumps({"header": {"id": "0x7f", "rank": rank, "n_ranks": 2}, "coll_perf": perf}) + "\n"

    lines = [line(0, 1, 1024, 90), line(1, 1, 1024, 40), line(0, 2, 1024, 44), line(1, 2, 1024, 70)]
    lines += [line(0, 3, 4096, 50), line(1, 3, 4096, 60), line(0, 4, 4096, 1, "Broadcast"), "{not whole"]
    found = read(tmp_path, "".join(lines))
    assert found.world_size == 2
    assert found.seconds == {1024: pytest.approx([40e-6, 44e-6]), 4096: pytest.approx([50e-6])}


@pytest.mark.parametrize(("column", "value"), [("seconds", "0.00004"), ("time_ms", "0.04"), ("time_us", "40")])
def test_a_csv_names_its_unit(tmp_path: Path, column: str, value: str) -> None:
    found = read(tmp_path, f"Bytes, {column}\n1024,{value}\n1024,{value}\n\n")
    assert found.seconds == {1024: pytest.approx([40e-6, 40e-6])}


def test_columns_of_a_csv_may_say_the_same_twice(tmp_path: Path) -> None:
    found = read(tmp_path, "op,ranks,size,time_ms,time_us\nall_reduce,8,1024,0.03,27\nall_reduce,8,2048,0.04,36\n")
    assert (found.world_size, sorted(found.seconds)) == (8, [1024, 2048])


def test_several_files_give_the_median_of_each_size(tmp_path: Path) -> None:
    for index, micros in enumerate((30, 50, 40)):
        (tmp_path / f"{index}.csv").write_text(f"bytes,time_us\n1024,{micros}\n4096,{2 * micros}\n", encoding="utf-8")
    model = link_cost(sorted(tmp_path.glob("*.csv")), world_size=2)
    assert [point.transfer_s for point in model.points] == pytest.approx([40e-6, 80e-6])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "holds no time of an all-reduce"),
        ("hello\n", "holds no time of an all-reduce"),
        ("bytes,time\n1,2\n", r"has no column of times \(seconds, "),
        ("weight,time_us\n1,2\n", r"has no column of sizes \(bytes, "),
        ("bytes,time_us\n1,x\n", "line 2: a size and a time above zero"),
        ("bytes,time_us\n1,-2\n", "line 2: a size and a time above zero"),
        ('{"results": 3}', "has no results of nccl-tests"),
        ('{"results": [', "is not whole JSON"),
        ('{"args": ["all_gather_perf"], "results": []}', "is of all_gather, and"),
        (HEAD.replace("all_reduce", "alltoall") + NEW, "is of alltoall, and"),
        ("    1024    256   float    none      -1    40.00    0.03    0.04       0\n", "without a reduction"),
        (NEW.replace("      -1 ", "       0 "), "is of a collective with root 0, and"),
        ("\x00\x01\x02", "holds no time"),
        # columns of a csv that tell another thing, or two
        ("op,size,time_us\nall_gather,1024,30\nall_reduce,2048,40\n", "is of all_gather"),
        ("ranks,size,time_us\n2,1024,30\n8,2048,40\n", "runs of 2 and of 8 ranks"),
        ("size,time_us,seconds\n1024,30,30\n2048,40,40\n", "contradict each other"),
        # two runs in one file
        (HEAD + NEW + HEAD.replace(RANKS, ranks_to(2)) + ROWS.format(7.82, 7.82), "holds runs of 2 and of 4 ranks"),
        # each row tells the collective
        (ranks_to(2) + ROWS.format("7.82", "7.82") + ROWS.format("7.82", "3.91"), r"bus bandwidth is 0\.5 times"),
    ],
)
def test_another_file_is_refused_in_one_sentence(tmp_path: Path, content: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        read(tmp_path, content)
    assert str(tmp_path / "log.txt") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_link_needs_ranks_and_two_sizes(tmp_path: Path) -> None:
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    one.write_text("bytes,time_us\n1024,40\n", encoding="utf-8")
    two.write_text("bytes,time_us\n1024,40\n2048,50\n", encoding="utf-8")
    with pytest.raises(UsageError, match="does not say how many ranks"):
        link_cost([two])
    with pytest.raises(UsageError, match="is of one rank"):
        link_cost([two], world_size=1)
    with pytest.raises(UsageError, match="needs two at least"):
        link_cost([one], world_size=2)
    four, eight = tmp_path / "four.txt", tmp_path / "eight.txt"
    four.write_text(HEAD + NEW, encoding="utf-8")
    eight.write_text(HEAD.replace(RANKS, ranks_to(8)) + ROWS.format(7.82, 13.69), encoding="utf-8")
    with pytest.raises(UsageError, match="of 4 and of 8 ranks"):
        link_cost([four, eight])


def test_tests_of_one_rank_each_are_no_test_of_many(tmp_path: Path) -> None:
    """`mpirun -np 8` of a binary without MPI starts eight tests, whose all-reduces are copies within one GPU."""
    found = read(tmp_path, 8 * (HEAD.replace(RANKS, ranks_to(1)) + ROWS.format("7.82", "0.00")))
    assert found.world_size == 1
    with pytest.raises(UsageError, match="is of one rank"):
        link_cost([tmp_path / "log.txt"])


def test_two_runs_of_one_file_are_of_the_same_ranks(tmp_path: Path) -> None:
    found = read(tmp_path, HEAD + NEW + HEAD + NEW)
    assert found.world_size == 4
    assert found.seconds[1024] == pytest.approx([35e-6, 35e-6])


@pytest.mark.parametrize(
    ("count", "algorithm", "bus", "is_all_reduce"),
    [
        (4, "7.82", "11.74", True),
        (4, "7.82", "5.87", False),  # a reduce-scatter
        (4, "7.82", "7.82", False),  # a reduce
        (2, "7.82", "7.82", True),
        (2, "7.82", "3.91", False),
        (8, "7.82", "13.69", True),
        (8, "7.82", "6.84", False),
        (8, "N/A", "N/A", True),
    ],
)
def test_the_bus_bandwidth_tells_the_collective(
    tmp_path: Path, count: int, algorithm: str, bus: str, is_all_reduce: bool
) -> None:
    text = ranks_to(count) + ROWS.format(algorithm, bus)
    if is_all_reduce:
        assert read(tmp_path, text).world_size == count
    else:
        with pytest.raises(UsageError, match=f"is not of an all-reduce of {count} ranks: its bus bandwidth is"):
            read(tmp_path, text)


@pytest.mark.parametrize("rows", [NEW, WITHOUT_ROOT])
def test_a_row_that_was_cut_is_no_row(tmp_path: Path, rows: str) -> None:
    whole, cut = rows.splitlines()[:2]
    in_place = cut.index("134.00") + len("134.00")
    assert read(tmp_path, f"{whole}\n{cut[:in_place]}\n").seconds == {1024: pytest.approx([35e-6])}


PROFILE = Path(__file__).parents[2] / "golden" / "profile-v1.json"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A file of nccl-tests, of 4 ranks."""
    path = tmp_path / "link.txt"
    path.write_text(HEAD + NEW, encoding="utf-8")
    return path


def planned(*words: str) -> AnyRecord:
    result = CliRunner().invoke(plan, [str(PROFILE), "--json", "-", *words], catch_exceptions=False)
    assert result.exit_code == 0
    return loads(result.stdout)


def test_plan_takes_the_link_of_a_file(log: Path) -> None:
    record = planned("--link", str(log), "--modes", "ddp,optimal")
    assert isinstance(record, Profile)
    assert record.cost_model.world_size == record.fabric.world_size == 4
    assert [point.nbytes for point in record.cost_model.points] == [1024, 1048576, 268435456]
    assert record.contention is None
    assert record.fabric.label == "simulated"
    assert "what if: T(M) of link.txt (4 workers) in place of the measured one" in record.warnings
    again = planned("--link", str(log), "--modes", "ddp", "--workers", "16")
    assert isinstance(again, Profile)
    assert again.fabric.world_size == 16
    scaled = planned("--link", str(log), "--modes", "ddp", "--workers", "4,8")
    assert isinstance(scaled, Scaling)
    assert {point.workers for point in scaled.points} == {4, 8}


@pytest.mark.parametrize("option", [["--rate", "1gbit"], ["--latency", "20us"]])
def test_a_link_and_a_rate_exclude_each_other(log: Path, option: list[str]) -> None:
    with pytest.raises(SpecError, match=f"so {option[0]} has no place"):
        CliRunner().invoke(plan, [str(PROFILE), "--link", str(log), *option], catch_exceptions=False)


def test_an_emulated_fabric_takes_the_link_of_a_file(log: Path, tmp_path: Path) -> None:
    path, bare = log, tmp_path / "link.csv"
    bare.write_text("bytes,time_us\n1024,35\n1048576,134\n", encoding="utf-8")
    spec = parse_fabric(f"emulated:link={path}")
    assert (spec.workers, spec.source) == (4, str(path))
    assert link_of(spec).model.points == link_cost([path]).points
    assert link_of(parse_fabric(f"emulated:link={path},workers=8")).model.world_size == 8
    assert parse_fabric(f"emulated:link={bare},workers=8").workers == 8
    with pytest.raises(UsageError, match="does not say how many ranks"):
        parse_fabric(f"emulated:link={bare}")
    with pytest.raises(SpecError, match="so rate= has no place"):
        parse_fabric(f"emulated:link={path},rate=1gbit")
    with pytest.raises(SpecError, match="so link= has no place"):
        parse_fabric(f"emulated:from={PROFILE},link={path}")
    with pytest.raises(RecordError):
        parse_fabric(f"emulated:from={path}")


def test_a_bus_bandwidth_tells_the_ranks_where_no_line_does(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(ROWS.format("7.82", "13.68"), encoding="utf-8")
    assert link_cost([path], world_size=8).world_size == 8
    with pytest.raises(UsageError, match="not of an all-reduce of 2 ranks"):
        link_cost([path], world_size=2)
