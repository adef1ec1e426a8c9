from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planning_cases import line
from what_if_cases import LINE, ONE, beside, contentions, given_cost, record

from xbench.errors import RecordError, SpecError
from xbench.fabrics import parse_fabric
from xbench.field_types import MIN_S
from xbench.planning.cost import CostCurve, fit, ring
from xbench.planning.measured import measured
from xbench.planning.scale import check
from xbench.planning.scenario import Change, change_to, replan, to_profile, what_if
from xbench.planning.topology import Topology
from xbench.records import Contention, CostModel, CostPoint, CostSegment, FabricRecord, Layer, Tensor, dump, loads
from xbench.spec import FabricSpec

KIB, MIB = 1024, 1024 * 1024


# --- what a change does ----------------------------------------------------------------------------------------------


def test_a_faster_link_shrinks_what_the_link_took_and_nothing_else() -> None:
    # 2 workers at 1 Gbit/s: 8 ns a byte on the wire; the other 2 ns are the hosts'
    found = what_if(given_cost(line(0.001, 10e-9)), Change(rate_bps=10e9))
    assert found.cost.alpha_s == 0.001
    assert found.cost.beta_s_per_byte == pytest.approx(0.8e-9 + 2e-9)
    assert found.cost.alpha_ci95 == pytest.approx((0.0009, 0.0011))
    assert found.cost.beta_ci95 == pytest.approx((0.8e-9 + 1e-9, 0.8e-9 + 3e-9))
    assert found.changes == (
        "links of 10.0 Gbit/s in place of 1.00 Gbit/s: what the link took of each all-reduce, at 1.00 Gbit/s as "
        "measured, × 0.1",
    )
    assert found.cautions == ("What hosts need for each byte hid behind the slower link: a faster one may help less.",)
    assert (found.fabric.label, found.fabric.rate_bps, found.fabric.measured_bps) == ("simulated", 10e9, None)


def test_a_rate_is_taken_against_the_one_asked_for_at_what_that_achieved() -> None:
    # asked for 1 Gbit/s, achieved 800 Mbit/s: 10 ns a byte; half the rate asked for, twice the time
    found = what_if(given_cost(line(0.0, 10e-9), measured_bps=0.8e9), Change(rate_bps=0.5e9))
    assert found.cost.beta_s_per_byte == pytest.approx(20e-9)


def test_a_latency_is_of_one_message_and_an_all_reduce_has_two_a_neighbour() -> None:
    found = what_if(given_cost(line(0.004, 8e-9)), Change(latency_s=50e-6))
    assert found.cost.alpha_s == pytest.approx(100e-6)
    assert found.cost.beta_s_per_byte == 8e-9
    assert found.changes == (
        "50.0 µs a message in place of 2.00 ms, with 2 messages an all-reduce of the 2 workers measured",
    )


def test_the_link_of_a_file_has_sizes_of_its_own_and_no_rate_of_the_measured_one() -> None:
    was = given_cost(line(0.001, 10e-9))
    given = line(0.002, 1e-9)
    found = what_if(was, Change(link=given, link_name="fast.txt"))
    assert found.fabric.rate_bps is None
    assert found.basis is given
    assert what_if(was, Change()).basis is was.cost


def test_an_emulated_tree_is_not_carried_over_as_a_ring() -> None:
    fabric = record().fabric.model_copy(
        update={"label": "emulated", "spec": "emulated:workers=2,rate=1gbit,latency=20us,topology=tree,ranks=2"}
    )
    tree = measured(record().model_copy(update={"fabric": fabric}), "tree.json")
    assert what_if(tree, Change(compute_scale=0.5)).cost == tree.cost
    for change in (Change(workers=16), Change(rate_bps=1e10), Change(latency_s=1e-3)):
        with pytest.raises(SpecError, match="emulated with the topology tree"):
            what_if(tree, change)
    with pytest.raises(RecordError, match=r"tree\.json.* says nothing of other sizes"):
        check(tree, Topology("ring"))


def test_everything_at_once_is_the_ring_formula_of_the_new_link() -> None:
    # a host's half nanosecond a byte is as measured, and goes with the bytes of the ring
    a, b = ring(1e-4, 8e-9 + 0.5e-9, 2)
    found = what_if(given_cost(line(a, b)), Change(rate_bps=10e9, latency_s=20e-6, workers=8))
    assert (found.cost.alpha_s, found.cost.beta_s_per_byte) == pytest.approx(ring(20e-6, 0.8e-9 + 0.5e-9, 8))
    assert (found.cost.world_size, found.fabric.hosts, found.fabric.world_size) == (8, 8, 8)
    assert found.changes[2] == "8 workers in place of 2, in a ring: messages × 7, bytes on each link × 1.75"


def test_a_compute_scale_is_of_every_part_and_of_nothing_on_the_link() -> None:
    was = given_cost(line(0.001, 8e-9))
    found = what_if(was, Change(compute_scale=0.25))
    assert found.step == was.step.scaled(0.25)
    assert found.step.compute_s == pytest.approx(0.402 / 4)
    assert found.cost is was.cost
    assert found.changes == ("compute × 0.25: 100 ms a step in place of 402 ms, every layer alike",)
    assert found.fabric.label == "simulated"


def test_small_messages_keep_their_latency_on_a_faster_link() -> None:
    """A short burst passes a shaped link faster than its rate: what it took was latency, not the link."""
    points = [
        CostPoint(nbytes=size, transfer_s=t, ci95=(t, t), wait_s=0.0, repetitions=5)
        for size, t in ((KIB, 0.3e-3), (32 * KIB, 0.3e-3), (MIB, 8.7e-3), (32 * MIB, 268.7e-3))
    ]
    was = given_cost(fit(points, backend="gloo", world_size=2))
    alpha_s = was.cost.alpha_s
    now = what_if(was, Change(rate_bps=10e9)).cost
    times = {point.nbytes: point.transfer_s for point in now.points}
    assert times[KIB] >= min(alpha_s, 0.3e-3)
    assert times[32 * KIB] >= min(alpha_s, 0.3e-3)
    # the largest took 268.7 ms, a little less than α and its bytes at 1 Gbit/s: all but α is the link's
    assert times[32 * MIB] == pytest.approx(alpha_s + 0.1 * (268.7e-3 - alpha_s))


def test_without_a_links_rate_the_measured_bus_bandwidth_stands_for_it() -> None:
    was = given_cost(line(0.0, 1e-9), rate_bps=None, measured_bps=None)
    was = measured(
        was.record.model_copy(update={"fabric": was.fabric.model_copy(update={"allreduce_bps": 8e9})}), "made"
    )
    found = what_if(was, Change(rate_bps=4e9))
    assert found.cost.beta_s_per_byte == pytest.approx(2e-9)
    assert found.cautions[0].startswith("No link's rate was measured: the bus bandwidth")


def test_a_far_rate_is_said() -> None:
    was = given_cost(line(0.001, 8e-9))
    assert what_if(was, Change(rate_bps=101e9)).cautions[-1] == "101 Gbit/s is far from the 1.00 Gbit/s measured."
    assert not any("far from" in caution for caution in what_if(was, Change(rate_bps=10e9)).cautions)


# --- what holds for every change -------------------------------------------------------------------------------------


@st.composite
def costs(draw: st.DrawFn) -> CostModel:
    """A cost model: a line, or measured points with whatever segments they need."""
    workers = draw(st.integers(2, 8))
    if draw(st.booleans()):
        return line(draw(st.just(0.0) | st.floats(1e-10, 1e-2)), draw(st.just(0.0) | st.floats(1e-30, 1e-7)), workers)
    count = draw(st.integers(2, 9))
    times = draw(st.lists(st.floats(1e-5, 1.0), min_size=count, max_size=count))
    points = [
        CostPoint(nbytes=4**place * KIB, transfer_s=t, ci95=(0.8 * t, 1.2 * t), wait_s=0.0, repetitions=5)
        for place, t in enumerate(sorted(times))
    ]
    return fit(points, backend="gloo", world_size=workers)


SIZES = [1.0, 100.0, 1024.0, 1500.0, 40_000.0, 65_536.0, 1e6, 4e6, 6e7]
LATENCIES = st.just(0.0) | st.floats(MIN_S, 1e-2)


@given(costs())
def test_what_equals_the_measured_values_changes_nothing(cost: CostModel) -> None:
    was = given_cost(cost)
    messages = 2 * (cost.world_size - 1)
    same = Change(
        rate_bps=1e9, latency_s=cost.alpha_s / messages, workers=cost.world_size, compute_scale=1.0, ranks_per_host=1
    )
    found = what_if(was, same)
    for size in SIZES:
        assert CostCurve.of(found.cost)(size) == pytest.approx(CostCurve.of(cost)(size), rel=1e-9)
    assert found.step is was.step
    assert what_if(was, Change()).cost is cost
    assert what_if(was, Change()).fabric is was.fabric
    assert what_if(was, Change()).changes == ()
    with_it = replace(was, contention_record=beside(ONE))
    assert what_if(with_it, Change(rate_bps=1e9, workers=cost.world_size)).contention_record is (
        with_it.contention_record
    )


@given(costs(), st.floats(1e6, 1e12), st.floats(1.0, 50.0))
def test_a_faster_link_makes_no_size_slower_and_not_the_exact_plan(
    cost: CostModel, rate_bps: float, faster: float
) -> None:
    was = given_cost(cost)
    slow, fast = (what_if(was, Change(rate_bps=rate)) for rate in (rate_bps, rate_bps * faster))
    largest = max((point.nbytes for point in cost.points), default=math.inf)
    for size in SIZES:
        if size <= largest:
            assert CostCurve.of(fast.cost)(size) <= CostCurve.of(slow.cost)(size) * (1 + 1e-9)
    assume(was.step.grad_bytes <= largest)
    # The exact plan ends its last collective first; with an optimizer that takes no time that is the step.
    eager = [replace(found, step=replace(found.step, optimizer_s=0.0)) for found in (slow, fast)]
    slow_s, fast_s = (replan(found, ["optimal"]).plans["optimal"].predicted_step_s for found in eager)
    assert fast_s <= slow_s * (1 + 1e-9)


@given(costs(), LATENCIES, LATENCIES)
def test_a_shorter_latency_makes_no_size_slower(cost: CostModel, one_s: float, other_s: float) -> None:
    was = given_cost(cost)
    short, long = (what_if(was, Change(latency_s=latency)).cost for latency in sorted((one_s, other_s)))
    largest = max((point.nbytes for point in cost.points), default=math.inf)
    for size in SIZES:
        if size <= largest:
            assert CostCurve.of(short)(size) <= CostCurve.of(long)(size) * (1 + 1e-9)


@settings.get_profile("few")
@given(costs(), st.none() | contentions(), st.floats(1e6, 1e12), LATENCIES, st.integers(2, 3000), st.floats(1e-3, 1e3))
def test_every_scenario_can_be_planned_and_its_record_read(
    cost: CostModel, both: Contention | None, rate_bps: float, latency_s: float, workers: int, scale: float
) -> None:
    found = what_if(given_cost(cost, contention=both), Change(rate_bps, latency_s, workers, scale))
    assert CostCurve.of(found.cost)(0.0) == 0.0
    assert found.fabric.hosts * found.fabric.ranks_per_host == workers
    plans = replan(found, ["ddp", "optimal", "auto"])
    profile = to_profile(plans, "xbench plan")
    assert profile.plans["optimal"].predicted_step_s >= found.step.compute_s * (1 - 1e-9)
    again = measured(loads(dump(profile)), "again")  # type: ignore[arg-type]
    assert (again.cost, again.fabric, again.contention_record) == (found.cost, found.fabric, found.contention_record)
    once = replan(what_if(again, Change()), ["ddp", "optimal", "auto"])
    assert (once.plans, once.bounds) == (plans.plans, plans.bounds)
    assert again.step.parts == pytest.approx(found.step.parts)


# --- fabrics ---------------------------------------------------------------------------------------------------------


def test_a_shaped_fabric_is_a_rate_and_a_number_of_workers() -> None:
    change = change_to(parse_fabric("shaped:hosts=4,rate=10gbit,ranks=2"), record().fabric)
    assert change == Change(rate_bps=10e9, workers=8, ranks_per_host=2)
    found = what_if(given_cost(line(0.001, 8e-9)), change)
    assert (found.fabric.hosts, found.fabric.ranks_per_host, found.cost.world_size) == (4, 2, 8)


def local() -> FabricRecord:
    update = {"name": "local", "spec": "local:ranks=2", "hosts": 1, "ranks_per_host": 2}
    return record().fabric.model_copy(update=update | {"rate_bps": None, "measured_bps": None})


def test_local_ranks_lead_to_local_ranks() -> None:
    assert change_to(parse_fabric("local:ranks=4"), local()) == Change(workers=4, ranks_per_host=4)


@pytest.mark.parametrize(
    ("text", "was", "sentence"),
    [
        ("local:ranks=4", record().fabric, "no what-if leads there"),
        ("shaped:hosts=2,rate=1gbit", local(), "no what-if leads there"),
        ("auto", record().fabric, "names neither a rate nor a number of workers"),
        ("cluster", record().fabric, "names neither a rate nor a number of workers"),
    ],
)
def test_fabrics_that_no_change_leads_to(text: str, was: FabricRecord, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        change_to(FabricSpec(name=text) if text in ("auto", "cluster") else parse_fabric(text), was)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"workers": 1}, "--workers: 1 is out of range 2 to 1000000: an all-reduce is of 2 at least"),
        ({"workers": 10**40}, "out of range"),
        ({"compute_scale": -1.0}, "--compute-scale: -1 is out of range 1e-06 to 1e"),
        ({"compute_scale": math.nan}, "--compute-scale: nan is out of range"),
        ({"compute_scale": math.inf}, "--compute-scale: inf is out of range"),
        ({"rate_bps": 0.0}, "--rate: 0 bit/s is out of range"),
        ({"latency_s": -1.0}, "--latency: -1 s is out of range 0 to 1000"),
        ({"latency_s": 2e-309}, "--latency: 2e-309 s is below 1e-12 s, which no clock can tell"),
    ],
)
def test_changes_that_cannot_be(change: dict[str, float], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        Change(**change)  # type: ignore[arg-type]


def with_tensor(nbytes: int, ready_s: float) -> list[Layer]:
    tensor = Tensor(name="w", elements=nbytes // 4, bytes=nbytes, dtype="float32", ready_s=ready_s)
    return [record().layers[0].model_copy(update={"tensors": [tensor]})]


FALLING = [CostSegment(from_bytes=1, alpha_s=-1.0, beta_s_per_byte=0.0)]


@pytest.mark.parametrize(
    ("update", "sentence"),
    [
        ({"cost_model": None}, "'made' has no cost model: it was measured on shaped:hosts=2,rate=1gbit"),
        ({"layers": []}, "'made' has no layers with gradients: nothing to plan"),
        ({"layers": [record().layers[0].model_copy(update={"tensors": []})]}, "the layers have no gradients"),
        ({"step": None}, "'made' says nothing of how long a step takes"),
        ({"layers": with_tensor(4, -1.0)}, "w.ready_s is -1, out of range"),
        ({"cost_model": line(-1.0, 0.0)}, "cost_model.alpha_s is -1, out of range 0 to 1e"),
        ({"cost_model": LINE.model_copy(update={"segments": FALLING})}, r"planned: its cost model: .* not below zero"),
        ({"cost_model": line(1e11, 0.0)}, r"cost_model.alpha_s is 1e\+11, out of range 0 to 1e\+09"),
        ({"cost_model": line(0.0, 0.0, workers=1)}, "has a world size of 1, and an all-reduce needs 2"),
        ({"cost_model": line(0.0, 1e-9, workers=4)}, "of 4 workers over gloo and its fabric has 2 over gloo: they are"),
        ({"cost_model": LINE.model_copy(update={"backend": "nccl"})}, "over nccl and its fabric has 2 over gloo"),
        ({"cost_model": LINE.model_copy(update={"collective": "broadcast"})}, "is of broadcast, and all_reduce is"),
        ({"layers": with_tensor(0, 0.001)}, "its gradients have no bytes: nothing to send"),
        ({"contention": beside((4, 1, 1.0, 1.0, 0.0))}, "'made': its contention is not valid: compute_slowdown of 4 b"),
        ({"contention": beside((0, 1, 1.0, 1.0, 1.0))}, "its contention is not valid: a contention point of 0 bytes"),
        ({"contention": beside((4, 1, 1.0, 0.0, 1.0))}, "loaded_s of 4 bytes is 0, out of range 1e-12 to 1e"),
        ({"contention": beside((4, 1, 1e11, 1.0, 1.0))}, r"alone_s of 4 bytes is 1e\+11, out of range"),
        ({"contention": beside(ONE).model_copy(update={"hook_s": -1e-6})}, "hook_s is -1e-06, out of range 0 to"),
        ({"contention": beside(ONE).model_copy(update={"meeting_s": -5.0})}, "meeting_s is -5, out of range 0 to"),
        ({"contention": beside((4, 3, 1.0, 1.0, 1.0))}, "a point of 4 bytes has 3 in flight, and it is 1 or 2"),
        ({"layers": [record().layers[0].model_copy(update={"forward_s": -1.0})]}, "forward_s is -1, out of range"),
        ({"layers": [record().layers[0], record().layers[0]]}, "stands twice"),
    ],
)
def test_records_that_cannot_be_planned(update: dict[str, object], sentence: str) -> None:
    with pytest.raises(RecordError, match=sentence):
        measured(record().model_copy(update=update), "made")


def test_jobs_count_from_one_to_the_last() -> None:
    assert measured(record(), "made", 1) == measured(record(), "made")
    for job in (0, 2):
        with pytest.raises(SpecError, match=f"--job {job}: 'made' holds 1 job"):
            measured(record(), "made", job)


def test_a_record_of_compressed_gradients_is_refused() -> None:
    was = record()
    narrowed = was.model_copy(update={"spec": was.spec.model_copy(update={"compress": "bf16"})})
    with pytest.raises(SpecError, match="'run' was measured with gradients compressed to bf16") as caught:
        measured(narrowed, "run")
    assert caught.value.hint == "profile it again without --compress"
