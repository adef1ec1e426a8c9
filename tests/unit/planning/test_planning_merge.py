from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import gradients_of, partitions

from xbench.planning import merge
from xbench.planning.cost import CostCurve, CostFunction, FloatArray
from xbench.planning.simulate import Buckets, last_arrival_s
from xbench.planning.step import Gradient


@st.composite
def nets(draw: st.DrawFn, dtypes: tuple[str, ...] = ("float32",), largest: int = 40, most: int = 9) -> list[Gradient]:
    count = draw(st.integers(1, most))
    ready = draw(st.lists(st.floats(0, 20), min_size=count, max_size=count))
    nbytes = draw(st.lists(st.integers(0, largest), min_size=count, max_size=count))
    kinds = draw(st.lists(st.sampled_from(dtypes), min_size=count, max_size=count))
    return gradients_of(ready, nbytes, kinds)


LINES = st.builds(CostCurve.line, st.floats(0, 5), st.floats(0, 2))


@st.composite
def tables(draw: st.DrawFn) -> CostFunction:
    """An arbitrary positive T, neither monotone nor smooth: a random number for every size up to 9 · 40."""
    table = np.random.default_rng(draw(st.integers(0, 2**32))).uniform(0.01, 10.0, 9 * 40 + 1)

    def transfer(nbytes: FloatArray, /) -> FloatArray:
        return table[nbytes.astype(np.int64)]

    return transfer


@given(nets(), st.one_of(LINES, tables()))
def test_optimal_is_the_best_of_all_contiguous_partitions(gradients: list[Gradient], curve: CostFunction) -> None:
    best = min(last_arrival_s(gradients, buckets, curve) for buckets in partitions(len(gradients)))
    assert last_arrival_s(gradients, merge.optimal(gradients, curve), curve) == pytest.approx(best, rel=1e-9)


@given(nets(dtypes=("float32", "bfloat16")), tables())
def test_contiguous_optimum_with_two_dtypes(gradients: list[Gradient], curve: CostFunction) -> None:
    allowed = [
        buckets
        for buckets in partitions(len(gradients))
        if all(len({gradients[index].dtype for index in bucket}) == 1 for bucket in buckets)
    ]
    best = min(last_arrival_s(gradients, buckets, curve) for buckets in allowed)
    found = merge.optimal_contiguous(gradients, curve)
    assert found in allowed
    assert last_arrival_s(gradients, found, curve) == pytest.approx(best, rel=1e-9)


@given(
    nets(dtypes=("float32", "bfloat16")), st.one_of(LINES, tables()), st.floats(0, 5), st.floats(0, 2),
    st.integers(1, 60), st.integers(1, 200),
)  # fmt: skip
def test_optimal_is_never_worse_than_any_other_schedule(
    gradients: list[Gradient], curve: CostFunction, alpha: float, beta: float, first: int, cap: int
) -> None:
    best = last_arrival_s(gradients, merge.optimal(gradients, curve), curve)
    others = [
        merge.wfbp(gradients),
        merge.single(gradients),
        merge.mgwfbp(gradients, alpha, beta),
        merge.ddp(gradients),
    ]
    if len({gradient.dtype for gradient in gradients}) == 1:
        others.append(merge.ddp_assignment(gradients, [first, cap]))
    for buckets in others:
        assert best <= last_arrival_s(gradients, buckets, curve) * (1 + 1e-9)


@given(nets(dtypes=("float32", "bfloat16")), LINES, st.integers(1, 60), st.integers(1, 200))
def test_every_schedule_moves_every_gradient_once_and_mixes_no_dtypes(
    gradients: list[Gradient], curve: CostCurve, first: int, cap: int
) -> None:
    for buckets in (
        merge.single(gradients),
        merge.wfbp(gradients),
        merge.mgwfbp(gradients, 1.0, 0.1),
        merge.optimal(gradients, curve),
        merge.ddp(gradients),
        merge.ddp_assignment(gradients, [first, cap]),
    ):
        assert sorted(itertools.chain(*buckets)) == list(range(len(gradients)))
        assert all(bucket == sorted(bucket) for bucket in buckets)
        assert all(len({gradients[index].dtype for index in bucket}) == 1 for bucket in buckets)


def papers_algorithm(ready: list[float], nbytes: list[int], a: float, b: float) -> Buckets:
    """Algorithm 1 as printed: all start times anew after each merge, merged layers taking no time."""
    count = len(ready)
    carried = list(map(float, nbytes))
    takes = [a + b * size for size in carried]
    merged = [False] * count

    def starts() -> list[float]:
        found = [ready[0]]
        for layer in range(1, count):
            found.append(max(found[layer - 1] + takes[layer - 1], ready[layer]))
        return found

    for layer in range(count - 1):
        if ready[layer + 1] - starts()[layer] < a:
            carried[layer + 1] += carried[layer]
            carried[layer] = 0.0
            takes[layer] = 0.0
            takes[layer + 1] = a + b * carried[layer + 1]
            merged[layer] = True
    buckets: Buckets = [[]]
    for layer in range(count):
        buckets[-1].append(layer)
        if not merged[layer] and layer < count - 1:
            buckets.append([])
    return buckets


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), min_size=1, max_size=12),
    st.integers(0, 20),
    st.integers(0, 4),
)
def test_greedy_equals_the_printed_algorithm(layers: list[tuple[int, int]], a: int, b: int) -> None:
    ready = sorted(float(at) for at, _ in layers)
    nbytes = [size for _, size in layers]
    assert merge.mgwfbp(gradients_of(ready, nbytes), a, b) == papers_algorithm(ready, nbytes, a, b)


def test_fewer_buckets_are_taken_when_ends_are_equal() -> None:
    gradients = gradients_of([0.0, 0.0, 0.0, 0.0], [1, 1, 1, 1])
    assert merge.optimal(gradients, CostCurve.line(0.0, 1.0)) == [[0, 1, 2, 3]]
    assert merge.optimal(gradients_of([0.0, 0.1], [3, 3]), CostCurve.line(0.1, 0.1)) == [[0, 1]]
    # the last ready time decides: whatever came before has long arrived, in one bucket as well as in two
    assert merge.optimal(gradients_of([0.0, 0.0, 9.0], [1, 1, 1]), CostCurve.line(0.0, 1.0)) == [[0, 1], [2]]


def test_a_gradient_without_bytes_costs_nothing_by_itself() -> None:
    # the first arrives at 2, and at 3 if it waits for the empty one, which is ready at 1
    assert merge.optimal(gradients_of([0.0, 1.0], [1, 0]), CostCurve.line(1.0, 1.0)) == [[0], [1]]


def test_fewer_buckets_are_taken_behind_another_dtype_too() -> None:
    """The link takes a second a byte. The two that are ready at 9 end at 11, in one bucket as well as in two."""
    gradients = gradients_of([0.0, 0.0, 9.0, 9.0], [1, 1, 1, 1], ["bfloat16", "float32", "float32", "float32"])
    assert merge.optimal_contiguous(gradients, lambda nbytes: nbytes) == [[0], [1], [2, 3]]


def test_alternating_dtypes_do_not_break_the_optimum_apart() -> None:
    count = 40
    gradients = gradients_of([0.0] * count, [10] * count, ["float32", "bfloat16"] * (count // 2))
    curve = CostCurve.line(1.0, 1e-3)
    assert last_arrival_s(gradients, merge.optimal(gradients, curve), curve) == pytest.approx(2.4)
    assert last_arrival_s(gradients, merge.optimal_contiguous(gradients, curve), curve) == pytest.approx(40.4)


def test_optimal_holds_beyond_one_block_of_rows() -> None:
    random = np.random.default_rng(5)
    count = 150
    ready = sorted(random.uniform(0, 1, count).tolist())
    nbytes = random.integers(1, 10**6, count).tolist()
    gradients = gradients_of(ready, nbytes)
    curve = CostCurve.line(0.01, 1e-8)
    end = [0.0] * (count + 1)
    for j in range(count):
        end[j + 1] = min(max(end[i], ready[j]) + curve(float(sum(nbytes[i : j + 1]))) for i in range(j + 1))
    assert last_arrival_s(gradients, merge.optimal(gradients, curve), curve) == pytest.approx(end[-1], rel=1e-12)


def test_orders_that_are_none_are_refused() -> None:
    wrong = [Gradient("a", 1, 1.0), Gradient("b", 1, 0.0)]
    with pytest.raises(ValueError, match=r"not in ready order: 'b' at 0\.0 s follows 'a' at 1\.0 s"):
        merge.mgwfbp(wrong, 1.0, 1.0)
    with pytest.raises(ValueError, match="not in ready order"):
        merge.optimal(wrong, CostCurve.line(1.0, 1.0))
    with pytest.raises(ValueError, match="no gradients"):
        merge.optimal([], CostCurve.line(1.0, 1.0))
    with pytest.raises(ValueError, match="at least one limit"):
        merge.ddp_assignment(wrong, [])


def test_single_and_wfbp() -> None:
    gradients = gradients_of([0.0, 1.0, 2.0], [1, 1, 1], ["bfloat16", "float32", "bfloat16"])
    assert merge.single(gradients) == [[0, 2], [1]]
    assert merge.wfbp(gradients) == [[0], [1], [2]]


def test_ddp_closes_a_bucket_when_its_cap_is_reached() -> None:
    mib = 1024 * 1024
    gradients = gradients_of([0.0] * 6, [mib - 1, 1, 24 * mib, 2 * mib, 30 * mib, 5])
    assert merge.ddp(gradients) == [[0, 1], [2, 3], [4], [5]]
    assert merge.ddp_assignment(gradients, [1, 1]) == [[0], [1], [2], [3], [4], [5]]


@given(nets(dtypes=("float32", "float16"), largest=12), st.lists(st.integers(1, 80), min_size=1, max_size=4))
def test_ddp_assignment_is_torchs(gradients: list[Gradient], limits: list[int]) -> None:
    torch = pytest.importorskip("torch")
    assign = pytest.importorskip("torch.distributed")._compute_bucket_assignment_by_size
    width = {"float32": 4, "float16": 2}
    tensors = [torch.empty(g.nbytes, dtype=getattr(torch, g.dtype)) for g in gradients]
    ours = merge.ddp_assignment(
        [Gradient(g.name, g.nbytes * width[g.dtype], g.ready_s, g.dtype) for g in gradients], limits
    )
    theirs = assign(tensors, limits, [False] * len(tensors), list(range(len(tensors))))[0]
    # Buckets still open at the end come in the order of torch's hash map: compare those as a set.
    is_open = len(theirs) - len({g.dtype for g in gradients})
    closed = max(0, is_open)
    assert ours[:closed] == theirs[:closed]
    assert sorted(ours) == sorted(theirs)
