"""Speeds: the formula of a ring, measured tables, scaling records, and what each says of several hosts."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_cases import Amdahl, pollux_folder, rigid
from golden_file import GOLDEN
from hypothesis import given
from hypothesis import strategies as st
from public_files import public_file

from xbench.cluster.jobs import Job, fewest_hosts, on_hosts
from xbench.cluster.speeds import HostSpeed, HostTable, RingSpeed, TableSpeed, scaled_speed
from xbench.cluster.traces import load_trace
from xbench.cluster.traces.pollux import load_application
from xbench.errors import SpecError
from xbench.records import load

RING = RingSpeed((0.01, 0.002, 1e-9, 0.05), 128.0, 4e8)


def test_a_ring_is_the_formula() -> None:
    assert RING.sizes is None
    assert RING.step_s(1) == pytest.approx(0.01 * 128 + 0.05)
    assert RING.step_s(4) == pytest.approx(0.01 * 128 / 4 + 0.002 * 3 + 1e-9 * 3 * 4e8 / 4 + 0.05)
    assert RING(4) == pytest.approx(1 / RING.step_s(4))
    assert RING.exposed_share(1) == 0
    assert RING.exposed_share(4) == pytest.approx((0.006 + 0.3) / RING.step_s(4))
    # it may exchange nothing
    assert RingSpeed(RING.theta, 128.0, 0.0).step_s(4) == pytest.approx(0.32 + 3 * 0.002 + 0.05)
    with pytest.raises(ValueError, match="0 GPUs"):
        RING(0)


def test_a_table_is_what_was_measured_and_lines_between() -> None:
    table = TableSpeed.of({4: 300.0, 1: 100.0, 16: 600.0})
    assert table.sizes == tuple(range(1, 17))
    assert [table(gpus) for gpus in (1, 4, 16)] == [100.0, 300.0, 600.0]
    assert table(2) == pytest.approx(100 * math.sqrt(3))
    assert table(8) == pytest.approx(300 * math.sqrt(2))
    for gpus in (0, 17):
        with pytest.raises(ValueError, match=f"from 1 to 16 GPUs, and not for {gpus}"):
            table(gpus)


@given(st.dictionaries(st.integers(1, 64), st.floats(1e-3, 1e6), min_size=1, max_size=8))
def test_a_table_stays_between_its_neighbours(points: dict[int, float]) -> None:
    table = TableSpeed.of(points)
    assert (table.sizes[0], table.sizes[-1]) == (min(points), max(points))
    for gpus in table.sizes:
        low = max(size for size in points if size <= gpus)
        high = min(size for size in points if size >= gpus)
        least, most = sorted((points[low], points[high]))
        assert least * (1 - 1e-9) <= table(gpus) <= most * (1 + 1e-9)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RingSpeed((-1.0, 0.0, 0.0, 1.0), 1.0, 1.0), "none below zero"),
        (lambda: RingSpeed((math.nan, 0.0, 0.0, 1.0), 1.0, 1.0), "none below zero"),
        (lambda: RingSpeed((1.0, 0.0, 0.0, 1.0), 1.0, -1.0), "below zero"),
        (lambda: RingSpeed((0.0, 1.0, 1.0, 0.0), 1.0, 1.0), "no time"),
        (lambda: TableSpeed(()), "no points"),
        (lambda: TableSpeed(((2, 1.0), (2, 2.0))), "2 GPUs after 2"),
        (lambda: TableSpeed(((0, 1.0),)), "0 GPUs after 0"),
        (lambda: TableSpeed(((1, 0.0),)), "0.0 at 1 GPUs"),
        (lambda: TableSpeed(((1, math.nan),)), "nan at 1 GPUs"),
        (lambda: TableSpeed(((1, 1.0), (2_000_000_000, 2.0))), "to 2000000000 GPUs, and the most is 1000000"),
    ],
)
def test_what_is_no_speed_is_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        make()


def test_a_scaling_record_has_speeds() -> None:
    record = load(GOLDEN / "scaling-v1.json")
    speed = scaled_speed(record, "optimal")
    points = {point.workers: point.samples_per_s for point in record.points if point.mode == "optimal"}  # type: ignore[union-attr]
    alone = record.workload.batch_size / record.compute_s  # type: ignore[union-attr]
    assert dict(speed.points) == {1: alone} | points
    with pytest.raises(SpecError, match="several modes, and none is named"):
        scaled_speed(record)
    with pytest.raises(SpecError, match="mode 'optimall'") as raised:
        scaled_speed(record, "optimall")
    assert raised.value.hint == "did you mean 'optimal'?"
    alone_mode = record.model_copy(update={"modes": ["optimal"]})
    assert scaled_speed(alone_mode) == speed
    of_a_trace = record.workload.model_copy(update={"batch_size": 0})  # type: ignore[union-attr]
    with pytest.raises(SpecError, match="does not know its batch size"):
        scaled_speed(alone_mode.model_copy(update={"workload": of_a_trace}))
    with pytest.raises(SpecError, match="kind 'dict' holds no speeds"):
        scaled_speed({"kind": "scaling"})


HOSTED = RingSpeed((0.01, 0.002, 1e-9, 0.05), 128.0, 4e8, across=(0.004, 3e-9))


def test_the_fewest_hosts() -> None:
    assert [fewest_hosts(gpus, 4) for gpus in (1, 4, 5, 8, 11)] == [(1,), (4,), (1, 4), (4, 4), (3, 4, 4)]


def test_a_ring_over_hosts_is_the_formula() -> None:
    (job,) = on_hosts([Job("a", 0.0, 4, 1.0, HOSTED)], 4)
    speed = job.speed
    alone_s = 0.01 * 128 / 4 + 0.05
    within_s = alone_s + 0.002 * 3 + 1e-9 * 3 * 4e8 / 4
    across_s = alone_s + 0.004 * 3 + 3e-9 * 3 * 4e8 / 4
    assert speed(4) == pytest.approx(1 / within_s)
    assert speed.placed((4,), 1) == pytest.approx(1 / within_s)  # type: ignore[attr-defined]
    assert speed.placed((1, 3), 1) == pytest.approx(1 / across_s)  # type: ignore[attr-defined]
    three_s = alone_s + 0.004 * 3 + 9e-9 * 3 * 4e8 / 4  # the link a third as fast, its latency the same
    assert speed.placed((2, 2), 3) == pytest.approx(1 / three_s)  # type: ignore[attr-defined]
    assert speed(5) == speed.placed((1, 4), 1) == speed.fastest(5)  # type: ignore[attr-defined]
    assert speed.sizes is None
    # a link between hosts is never faster than one within
    fast = RingSpeed(HOSTED.theta, HOSTED.batch, HOSTED.model_bytes, across=(0.0, 0.0))
    assert fast.step_s(4, 1) == fast.step_s(4)


def test_a_speed_that_knows_nothing_of_hosts_has_a_factor_on_more_than_it_needs() -> None:
    (job,) = on_hosts(rigid((0, 6, 10)), 4, 0.8)
    assert job.duration_s == 10
    assert job.rigid
    assert job.speed.placed((2, 4), 9) == 1.0  # type: ignore[attr-defined]
    assert job.speed.placed((2, 2, 2), 1) == 0.8  # type: ignore[attr-defined]
    assert job.speed.fastest(6) == 1.0  # type: ignore[attr-defined]


def test_what_is_not_known_has_to_be_said() -> None:
    one, two = rigid((0, 1, 5), (0, 2, 5))
    assert on_hosts([one], 4)[0].speed(1) == 1.0  # one GPU is on one host
    with pytest.raises(SpecError, match="how fast job 'b' would be over several hosts is not known") as caught:
        on_hosts([one, two], 4)
    assert caught.value.hint == "--across-hosts 0.8 says 80 % of the speed on fewer"
    with pytest.raises(SpecError, match="'a' and 1 other"):
        on_hosts([Job("a", 0.0, 1, 1.0, Amdahl()), two], 4)
    with pytest.raises(SpecError, match="need no factor"):
        on_hosts([Job("a", 0.0, 1, 1.0, HOSTED)], 4, 0.8)
    for across in (0.0, 1.5, -1.0, float("nan")):
        with pytest.raises(SpecError, match="is not a share of a speed"):
            on_hosts([two], 4, across)


TABLE = HostTable(
    ((1, 1.0), (2, 2.0), (4, 3.0), (8, 4.0)),
    gpus_per_host=2,
    by_shape={(2,): HostSpeed(2.0, 0.1), (1, 1): HostSpeed(1.5, 0.5), (1, 1, 2): HostSpeed(3.5, 0.2)},
    by_hosts={
        4: (TableSpeed.of({4: 2.0, 8: 4.0}), TableSpeed.of({4: 0.25, 8: 0.25})),
        6: (TableSpeed.of({6: 2.5, 12: 5.0}), TableSpeed.of({6: 0.5, 12: 0.5})),
    },
)


def test_a_table_of_hosts_is_what_was_measured() -> None:
    assert TABLE.placed((1, 1), 1) == 1.5
    assert TABLE.placed((1, 1), 3) == 1.5 / 2  # an exchange of half the time takes three times as long
    assert TABLE.placed((2, 2), 1) == TABLE(4) == 3.0  # the fewest hosts
    assert TABLE.placed((1, 1, 1, 1), 1) == 2.0
    assert TABLE.placed((1, 1, 1, 1), 5) == 1.0
    assert TABLE.placed((1, 1, 1, 1, 2), 1) == 2.5  # the next larger number of hosts on which 6 were measured
    assert TABLE.placed((1,) * 7, 1) == pytest.approx(TABLE.by_hosts[6][0](7))  # none is larger
    assert TABLE.placed((1, 1, 1), 1) == TABLE(3)  # nothing is known of 3 GPUs over hosts
    assert TABLE.fastest(4) == 3.5
    assert TABLE.fastest(3) == TABLE(3)
    with pytest.raises(SpecError, match="hosts of 2 GPUs say nothing of hosts of 8") as caught:
        on_hosts([Job("a", 0.0, 1, 1.0, TABLE)], 8)
    assert caught.value.hint == "write --gpus-per-host 2"


def test_pollux_s_steps_know_their_placements(tmp_path: Path) -> None:
    folder = pollux_folder(tmp_path)
    with (folder / "yolov3" / "placements.csv").open("a") as placements:
        placements.write("13,8,20,5\n13,16,30,6\n22,8,18,9\n22,16,27,9\n31,8,99,1\n")
    speed = load_application(folder, "yolov3").speed(64)
    assert speed.placed((4,), 1) == speed(4) == pytest.approx(64 / 16.4)  # two times 8 samples
    assert speed.placed((1, 3), 1) == pytest.approx(64 / (20 + 15))
    assert speed.placed((2, 2), 1) == pytest.approx(64 / (18 + 9))
    assert speed.placed((2, 2), 2) == pytest.approx(64 / (18 + 9 + 9))
    assert speed.placed((4, 4, 4, 4), 1) == speed(16)
    assert speed.placed((1,) * 6 + (2,) * 5, 1) == pytest.approx(64 / 99)  # 6 hosts are nearest to 11


@pytest.mark.parametrize("number", [1, 6])
def test_no_placement_of_pollux_s_jobs_is_faster_than_its_fastest(number: int) -> None:
    trace = load_trace(f"pollux:{public_file('pollux/workloads').parent},workload={number}")
    for job in {id(job.speed): job for job in on_hosts(trace.jobs, 4)}.values():
        speed = job.speed
        assert isinstance(speed, HostTable)
        assert len(speed.by_shape) > 30
        for gpus in speed.sizes or ():
            shapes = [shape for shape in speed.by_shape if sum(shape) == gpus] + [fewest_hosts(gpus, 4)]
            assert max(speed.placed(shape, 1) for shape in shapes) <= speed.fastest(gpus)
