import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.errors import RunError
from xbench.profilers.summary import cost_points, left_out, own_steps, samples, sometimes_missing, summarise


def raw(
    layers, *, step=10.0, bare=10.0, forward=4.0, backward=5.0, optimizer=1.0, warmup=2, steps=6, frozen=(), read=0.0
):
    """A rank whose steps are all alike. `layers`: name → (forward_s, {tensor: ready_s})."""
    times = warmup + steps

    def series(value):
        return list(value) if isinstance(value, list) else [value] * times

    return {
        "warmup": warmup,
        "micro_steps": 1,
        "updates_together": False,
        "loads_ahead": False,
        "frozen": list(frozen),
        "steps": {
            "input_s": series(read),
            "forward_s": series(forward),
            "backward_s": series(backward),
            "optimizer_s": series(optimizer),
            "step_s": series(step),
            "uninstrumented_step_s": series(bare),
        },
        "layers": [
            {
                "name": name,
                "kind": "Linear",
                "forward_s": series(forward_s),
                "tensors": [
                    {"name": f"{name}.{t}", "elements": 5, "bytes": 20, "dtype": "float32", "ready_s": series(ready_s)}
                    for t, ready_s in tensors.items()
                ],
            }
            for name, (forward_s, tensors) in layers.items()
        ],
    }


TWO_LAYERS = {"first": (1.0, {"weight": 4.5, "bias": 5.0}), "last": (3.0, {"weight": 2.0, "bias": 1.5})}


def test_layers_stand_in_gradient_ready_order_with_their_tensors():
    layers, step = summarise([raw(TWO_LAYERS, frozen=["x"])])
    assert [layer.name for layer in layers] == ["last", "first"]
    last, first = layers
    assert (last.forward_s, last.backward_s, last.ready_s) == (3.0, 2.0, 2.0)
    assert (first.forward_s, first.backward_s, first.ready_s) == (1.0, 3.0, 5.0)
    assert (first.parameters, first.grad_bytes, first.kind) == (10, 40, "Linear")
    assert [tensor.name for tensor in last.tensors] == ["last.bias", "last.weight"]
    assert last.share == 0.5
    assert first.share == 0.4
    assert (step.forward_s, step.backward_s, step.optimizer_s, step.step_s) == (4.0, 5.0, 1.0, 10.0)


def test_the_slowest_rank_counts():
    slow = raw({"first": (2.0, {"weight": 4.0}), "last": (2.5, {"weight": 3.0})}, step=12.0, bare=11.0, forward=4.5)
    fast = raw({"first": (1.0, {"weight": 5.0}), "last": (3.0, {"weight": 2.0})}, backward=6.0)
    layers, step = summarise([fast, slow])
    found = [(layer.name, layer.ready_s, layer.forward_s, layer.backward_s) for layer in layers]
    assert found == [("last", 3.0, 3.0, 3.0), ("first", 5.0, 2.0, 2.0)]
    assert (step.step_s, step.uninstrumented_step_s, step.forward_s, step.backward_s) == (12.0, 11.0, 4.5, 6.0)


def test_warm_up_is_set_apart_at_least_as_long_as_asked():
    series = [90.0, 90.0, *[10.0] * 6]
    _, step = summarise([raw({"a": (1.0, {"w": [80.0, 80.0, *[5.0] * 6]})}, step=series, bare=series, warmup=2)])
    assert (step.steps, step.warmup_steps) == (6, 2)
    assert step.step_s == 10.0


def test_a_longer_warm_up_is_detected():
    noise = random.Random(1)
    series = [30.0, 28.0, 26.0, 25.0] + [10.0 + noise.random() / 10 for _ in range(20)]
    profile = raw({"a": (1.0, {"w": series})}, step=series, bare=series, warmup=1, steps=23)
    layers, step = summarise([profile])
    assert step.warmup_steps >= 4
    assert step.steps == 24 - step.warmup_steps
    assert 10.0 <= layers[0].ready_s <= 10.1


def test_overhead_is_the_median_of_neighbouring_pairs_each_averaged_over_ranks():
    bare = [1.0, 1.0, 10.0, 20.0, 10.0, 20.0, 10.0, 20.0]
    step = [1.0, 1.0, 11.0, 22.0, 11.0, 22.0, 11.0, 22.0]  # ten per cent, whatever the machine does
    _, times = summarise([raw(TWO_LAYERS, step=step, bare=bare), raw(TWO_LAYERS, step=12.0)])
    assert times.overhead_ratio == pytest.approx(0.15)
    assert times.overhead_ci95 == pytest.approx((0.15, 0.15))


def test_parameters_without_gradient_are_left_out_and_named():
    layers = {
        "used": (1.0, {"weight": 4.0, "idle": None}),
        "sometimes": (1.0, {"weight": [None, None, None, 3.0, None, 3.0, None, 3.0]}),
        "idle": (0.0, {"weight": None}),
    }
    profile = raw(layers, frozen=["stem.weight"])
    found, _ = summarise([profile])
    assert [(layer.name, layer.ready_s, layer.parameters) for layer in found] == [
        ("sometimes", 3.0, 5),
        ("used", 4.0, 5),
    ]
    assert left_out([profile]) == {"frozen": ["stem.weight"], "unused": ["used.idle", "idle.weight"]}


def test_a_gradient_on_one_rank_is_enough():
    one, other = raw({"a": (1.0, {"w": None})}), raw({"a": (1.0, {"w": 2.0})})
    layers, _ = summarise([one, other])
    assert layers[0].ready_s == 2.0
    assert left_out([one, other])["unused"] == []
    assert sometimes_missing([one, other]) == ["a.w"]
    assert sometimes_missing([other, other]) == []
    assert sometimes_missing([raw({"a": (1.0, {"w": [3.0, None, *[3.0] * 6], "v": 2.0})})]) == ["a.w"]


def test_ranks_with_different_models_are_refused():
    with pytest.raises(RunError, match="rank 1 profiled another model"):
        summarise([raw(TWO_LAYERS), raw({"first": TWO_LAYERS["first"]})])
    with pytest.raises(ValueError, match="at least one rank"):
        summarise([])


def test_samples_hold_every_step_of_every_rank():
    ranks = [raw(TWO_LAYERS), raw(TWO_LAYERS, step=11.0)]
    series = samples(ranks)
    assert series["rank1.step_s"] == [11.0] * 8
    assert len(series) == 12


@given(st.lists(st.lists(st.floats(0, 100), min_size=3, max_size=3), min_size=1, max_size=3), st.data())
def test_backward_times_add_up_to_the_last_gradient(ready_by_rank, data):
    ranks = [raw({f"l{i}": (1.0, {"w": ready_s}) for i, ready_s in enumerate(row)}) for row in ready_by_rank]
    layers, _ = summarise(ranks)
    assert all(layer.backward_s >= 0 for layer in layers)
    assert [layer.ready_s for layer in layers] == sorted(layer.ready_s for layer in layers)
    assert sum(layer.backward_s for layer in layers) == pytest.approx(max(map(max, ready_by_rank)))


def test_the_wait_for_a_loader_is_of_the_rank_that_waits_longest_and_part_of_its_input():
    ranks = [raw(TWO_LAYERS, read=0.5), raw(TWO_LAYERS, read=0.5)]
    for rank, load_s in zip(ranks, (0.25, 2.0), strict=True):
        rank["steps"]["load_s"] = [load_s] * 8
        rank["loads_ahead"] = True
    _, step = summarise(ranks)
    assert (step.input_s, step.input_ahead) == (2.0, True)
    assert [own.parts_s["input"] for own in own_steps(ranks, [0.0, 0.0], [None, None])] == [0.75, 2.5]
    assert (summarise([raw(TWO_LAYERS)])[1].input_s, summarise([raw(TWO_LAYERS)])[1].input_ahead) == (0.0, False)


def test_each_rank_has_its_own_steps_parts_and_ends_of_layers():
    series = [90.0, 90.0, *[10.0] * 6]
    own = raw(TWO_LAYERS, step=series, bare=[90.0, 90.0, *[9.0] * 6], read=0.5)
    other = raw({"first": (2.0, {"weight": 4.0, "bias": None}), "last": (2.5, {"weight": 3.0, "bias": 1.0})})
    found, beside = own_steps([own, other], [0.0, 0.25], [None, "node1"])
    assert found.steps_s == [*[10.0] * 6, *[9.0] * 6]
    assert found.parts_s == {"input": 0.5, "forward": 3.5, "backward": 5.0, "optimizer": 1.0}
    assert found.ends_s == {"forward": {"first": 0.5, "last": 3.5}, "backward": {"last": 2.0, "first": 5.0}}
    assert list(found.ends_s["backward"]) == ["last", "first"]
    assert beside.ends_s["backward"] == {"last": 3.0, "first": 4.0}
    assert (found.waited_share, found.host, beside.waited_share, beside.host) == (0.0, None, 0.25, "node1")


def point(nbytes, starts, ends, warmup=1):
    return {"nbytes": nbytes, "warmup": warmup, "start_s": starts, "end_s": ends}


def test_wait_for_a_late_rank_is_no_transfer():
    early = [point(1024, [0.0, 10.0, 20.0, 30.0], [99.0, 14.0, 24.0, 34.0])]
    late = [point(1024, [0.0, 13.0, 23.0, 33.0], [99.0, 14.5, 24.5, 34.5])]
    (found,) = cost_points([early, late])
    assert (found.nbytes, found.transfer_s, found.wait_s, found.repetitions) == (1024, 1.5, 3.0, 3)
    assert found.ci95 == (1.5, 1.5)


def test_the_transfer_is_never_shorter_than_what_the_last_rank_spent():
    # Rank 1's clock is estimated 5 s too late: on the common line it starts after rank 0 has ended.
    right = [point(1024, [0.0, 10.0], [2.0, 12.0])]
    wrong = [point(1024, [5.0, 15.0], [6.5, 16.5])]
    (found,) = cost_points([right, wrong])
    assert found.transfer_s == 1.5
    right[0]["end_s"][1] = wrong[0]["end_s"][1] = 15.25  # and here it would end 0.25 s after it began
    wrong[0]["start_s"][1] = 15.0
    assert cost_points([right, wrong])[0].transfer_s == 0.25


def test_rare_long_repetitions_count_in_a_mean():
    """Without its first repetition: 1, 1, 1 and 5 s. The interval is Student's, with s/√n = 1 s, from 0 on."""
    starts = [float(10 * at) for at in range(5)]
    rank = [point(1024, starts, [start + took for start, took in zip(starts, [9, 1, 1, 1, 5], strict=True)])]
    assert cost_points([rank])[0].transfer_s == 1.0
    (found,) = cost_points([rank], means=True)
    assert found.transfer_s == 2.0
    assert found.ci95 == pytest.approx((0.0, 2.0 + 3.182), abs=1e-3)


def test_the_longest_of_ten_repetitions_is_no_part_of_their_mean():
    for took_s in ([2.0, *[1.0] * 8], [99.0, 2.0, *[1.0] * 8]):
        starts = [float(100 * at) for at in range(len(took_s) + 1)]
        ends = [start + took for start, took in zip(starts, [9.0, *took_s], strict=True)]
        assert cost_points([[point(1024, starts, ends)]], means=True)[0].transfer_s == pytest.approx(10 / 9)


def test_cost_points_are_in_ascending_order():
    rank = [point(4096, [0.0, 1.0], [0.5, 1.5]), point(1024, [0.0, 2.0], [0.25, 2.25])]
    assert [(p.nbytes, p.transfer_s) for p in cost_points([rank])] == [(1024, 0.25), (4096, 0.5)]


def test_ranks_with_different_repetitions_are_refused():
    with pytest.raises(RunError, match="rank 1 measured other"):
        cost_points([[point(4, [0.0, 1.0], [0.0, 1.0])], [point(4, [0.0], [0.0])]])
    with pytest.raises(ValueError, match="at least one rank"):
        cost_points([])


@given(
    offset=st.floats(-100, 100), starts=st.lists(st.floats(0, 1), min_size=2, max_size=2), transfer=st.floats(1e-3, 10)
)
def test_a_wrong_clock_never_makes_a_transfer_shorter(offset, starts, transfer):
    ends = [max(starts) + transfer] * 2
    ranks = [
        [point(4, [0.0, start + shift], [0.0, end + shift])]
        for start, end, shift in zip(starts, ends, (0.0, offset), strict=True)
    ]
    assert cost_points(ranks)[0].transfer_s >= transfer * (1 - 1e-6)


def test_summary_needs_no_torch():
    code = "import sys, xbench.profilers.summary; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
