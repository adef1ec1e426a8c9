"""The batch of each rank: which samples it repeats, and refusals of equal batches and of unequal parameters."""

from __future__ import annotations

from collections import UserDict
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from xbench.errors import WorkloadError
from xbench.spec import WorkloadSpec
from xbench.workloads.batches import samples_of, tensors_in, with_each
from xbench.workloads.build import check_alike
from xbench.workloads.custom import drawn, with_repeated
from xbench.workloads.preflight import check_varied, difference
from xbench.workloads.workload import Workload

CROSS_ENTROPY = nn.CrossEntropyLoss()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def workload(model, inputs, targets, loss=CROSS_ENTROPY) -> Workload:
    return Workload(WorkloadSpec(name="train.py:make"), model, inputs, targets, loss, 0, "")


@pytest.mark.parametrize("samples", [2, 3, 4, 31])
def test_some_samples_stand_twice_in_their_order_and_others_are_left_out(samples: int) -> None:
    for _ in range(10):
        order = drawn(samples)
        assert len(order) == samples
        assert order.tolist() == sorted(order.tolist())
        assert len(set(order.tolist())) == (samples + 1) // 2 < samples


def test_samples_are_drawn_alike_in_everything_that_has_as_many() -> None:
    numbers = torch.arange(6)
    batch = ({"x": numbers.float().reshape(6, 1), "mask": torch.ones(2, 2), "flag": True}, (numbers, torch.tensor(3)))
    inputs, (targets, whole) = with_repeated(batch)
    assert inputs["x"].flatten().tolist() == targets.tolist() != numbers.tolist()
    assert (inputs["mask"].shape, inputs["flag"], whole.item()) == ((2, 2), True, 3)


def test_memory_format_and_leaves_stay_as_they_are() -> None:
    images = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    (found, _) = with_repeated((images, None))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert found.requires_grad
    assert found.is_leaf


class Categories(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(5, 8), nn.Linear(8, 3)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(codes.round().long()).flatten(1))


def test_codes_and_probabilities_in_floats_stay_within_what_the_model_takes() -> None:
    codes, targets = torch.randint(0, 5, (16, 1)).float(), torch.randint(0, 3, (16,))
    assert check_varied(workload(Categories(), codes, targets)) == []
    inside = torch.rand(16, 4)
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
    assert check_varied(workload(model, inside, inside, nn.functional.binary_cross_entropy)) == []


def test_labels_inside_the_inputs_move_with_their_samples() -> None:
    class Labelled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(20, 20)

        def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return CROSS_ENTROPY(self.table(ids).flatten(0, 1), labels.flatten())

    ids = torch.randint(0, 20, (4, 6))
    one = workload(Labelled(), {"ids": ids, "labels": ids}, None, lambda loss, _: loss)
    assert check_varied(one) == []
    inputs, _ = with_repeated((one.inputs, None))
    assert torch.equal(inputs["ids"], inputs["labels"])


class Sorted(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(set(x[:, 0].tolist())) < len(x):
            raise ValueError("a sample stands twice")
        return super().forward(x)


NORMED = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("model", "inputs", "why"),
    [
        (nn.Linear(6, 3), torch.ones(1, 6), "half of its samples, each twice, have the gradient of all"),
        (NORMED, torch.ones(4, 6), "half of its samples, each twice, have the gradient of all"),
        (Sorted(6, 3), torch.arange(24.0).reshape(4, 6), "the model raises ValueError: a sample stands twice"),
    ],
)
def test_a_batch_that_repeated_samples_cannot_vary_is_refused_with_both_ways(
    model: nn.Module, inputs: torch.Tensor, why: str
) -> None:
    one = workload(model, inputs, torch.ones(len(inputs), dtype=torch.int64))
    with pytest.raises(WorkloadError, match=why) as caught:
        check_varied(one)
    assert "make(rank)" in str(caught.value.hint)
    assert "make.vary = 'none'" in str(caught.value.hint)
    assert check_varied(replace(one, spec=one.spec.model_copy(update={"variation": "rank"}))) == []
    (note,) = check_varied(replace(one, spec=one.spec.model_copy(update={"variation": "none"})))
    assert "the same batch" in note


def test_gradients_are_compared_by_norm() -> None:
    a = [torch.tensor([3.0, 0.0]), torch.tensor([4.0]), None]
    assert difference(a, a) == 0.0
    assert difference(a, [torch.tensor([3.0, 0.0]), torch.tensor([4.5]), None]) == pytest.approx(0.1)
    assert difference(a, [torch.tensor([3.0, 0.0]), torch.tensor([4.0]), torch.tensor([5.0])]) == pytest.approx(1.0)
    assert difference([torch.zeros(2)], [torch.zeros(2)]) == 0.0
    assert not difference(a, [torch.tensor([float("nan"), 0.0]), torch.tensor([4.0]), None]) < 1


class Pair(NamedTuple):
    x: torch.Tensor
    mask: torch.Tensor


def of(*sizes: int) -> torch.Tensor:
    return torch.zeros(sizes)


def nested(*lengths: int, layout: torch.layout = torch.jagged) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.randn(length, 2) for length in lengths], layout=layout)


IMAGES = [of(3, 40 + 8 * index, 64) for index in range(8)]


@pytest.mark.parametrize(
    ("inputs", "targets", "time_first", "samples"),
    [
        (of(8, 5), of(8), False, 8),
        (of(8, 5), None, False, 8),
        ({"x": of(8, 5), "flag": True, "scale": of()}, {"a": of(8), "b": of(8, 3)}, False, 8),
        ([of(8, 5), of(8, 2)], (of(8), of(8)), False, 8),
        ((of(2, 5), of(2, 2)), None, False, 2),  # two arguments are no list of two samples
        ((of(50, 4),), of(4), False, None),
        (of(8, 5), of(200), False, None),
        # time first, or perhaps not
        (of(50, 4, 16), of(50, 4), True, None),
        (of(50, 4, 16), of(50, 4), False, 50),
        (of(50, 4, 16), of(4), True, 4),
        (of(32, 50, 16), of(32), True, 32),
        # a list of samples, or of what all samples have
        ((IMAGES, [{"boxes": of(2 + index % 3, 4)} for index in range(8)]), None, False, 8),
        ((IMAGES,), of(8), False, 8),
        ((IMAGES,), None, False, None),
        (([of(8, 2), of(8, 3)],), of(8), False, 8),
        ((IMAGES[:1],), [{"boxes": of(2, 4)}], False, 1),
        # one object
        (Pair(of(8, 5), of(8)), of(8), False, 8),
        (pack_sequence([of(3, 2), of(2, 2)]), of(2), False, 2),
        (nested(3, 5, 2, 7), of(4), True, 4),
        (nested(3, 5, 2, 7, layout=torch.strided), of(4), True, 4),
        (UserDict(x=of(8, 5)), of(8), False, 8),
    ],
)
def test_the_number_of_samples_is_what_all_parts_of_a_batch_agree_on(
    inputs: Any, targets: Any, time_first: bool, samples: int | None
) -> None:
    assert samples_of(inputs, targets, time_first) == samples


def test_a_sample_of_a_list_is_one_of_its_items() -> None:
    images = [torch.full((3, 4 + index), float(index)) for index in range(6)]
    labels = torch.arange(6)
    (found, _), targets = with_repeated(((images, None), labels), 6)
    assert [int(image[0, 0]) for image in found] == targets.tolist() != labels.tolist()
    assert [image.shape for image in found] == [(3, 4 + label) for label in targets.tolist()]


def test_records_move_with_their_images_though_one_has_as_many_boxes_as_there_are_images() -> None:
    images = [torch.full((3, 8), float(index)) for index in range(4)]
    records = [{"boxes": torch.full((2 + index, 4), float(index))} for index in range(4)]  # 4 boxes in the third
    ((found, boxes), _) = with_repeated(((images, records), None))
    assert [int(image[0, 0]) for image in found] == [int(one["boxes"][0, 0]) for one in boxes] != [0, 1, 2, 3]


def test_a_sample_of_a_time_first_batch_is_a_column() -> None:
    numbers = torch.arange(6)
    found, targets = with_repeated((numbers.repeat(4, 1), numbers), 6, time_first=True)
    assert found.shape == (4, 6)
    assert found[0].tolist() == targets.tolist() != numbers.tolist()


@pytest.mark.parametrize("is_sorted", [True, False])
def test_a_sample_of_packed_and_jagged_batches_is_a_sequence(is_sorted: bool) -> None:
    lengths = [5, 4, 3, 2] if is_sorted else [2, 5, 3, 4]
    sequences = [torch.full((length, 2), float(length)) for length in lengths]
    wanted = torch.tensor(lengths)
    packed, targets = with_repeated((pack_sequence(sequences, enforce_sorted=is_sorted), wanted), 4)
    assert [len(one) for one in unpack_sequence(packed)] == targets.tolist() != lengths
    for layout in (torch.jagged, torch.strided):
        found, targets = with_repeated((torch.nested.nested_tensor(sequences, layout=layout), wanted), 4)
        assert [len(one) for one in found.unbind()] == targets.tolist() != lengths


def test_nests_keep_their_types() -> None:
    class Encoding(UserDict[str, Any]):
        pass

    nest = {"pair": Pair(of(2, 3), of(2)), "more": Encoding(ids=of(2)), "packed": pack_sequence([of(3, 2), of(2, 2)])}
    found = with_each(nest, lambda tensor: tensor + 1)
    assert [type(part) for part in found.values()] == [type(part) for part in nest.values()]
    assert all(bool((tensor == 1).all()) for tensor in tensors_in(found))
    assert not any(bool(tensor.any()) for tensor in tensors_in(nest))
    assert torch.equal(found["packed"].batch_sizes, nest["packed"].batch_sizes)


class Odd(nn.Module):
    """A parameter of every kind that has bits: quantised, complex, empty, a scalar, a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.quantised = nn.Parameter(torch.ones(2, 2, dtype=torch.int8), requires_grad=False)
        self.complex = nn.Parameter(torch.ones(3, dtype=torch.complex64).conj())
        self.empty, self.scalar = nn.Parameter(torch.ones(0, 3)), nn.Parameter(torch.tensor(1.0))
        self.transposed = nn.Parameter(torch.arange(6.0).reshape(2, 3).t())


def on_ranks(monkeypatch: pytest.MonkeyPatch, *models: nn.Module) -> None:
    """Check every model as the ranks would. Raises what the last one raises."""
    said: list[Any] = []

    def gather(into: list[Any], mine: Any, group: object = None) -> None:
        said.append(mine)
        into[:] = (said + [mine] * len(models))[: len(models)]

    monkeypatch.setattr(dist, "get_world_size", lambda group=None: len(models))
    monkeypatch.setattr(dist, "all_gather_object", gather)
    for model in models:
        check_alike(Workload(WorkloadSpec(name="a/train.py:make"), model, torch.ones(1), None, lambda *_: _, 1, ""))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("model.scalar.data += 1e-7", "in 'scalar'"),
        ("model.quantised.data[0, 0] = 2", "in 'quantised'"),
        ("model.transposed = nn.Parameter(torch.ones(3, 3))", "in 'transposed'"),
        ("model.more = nn.Linear(2, 2)", "in 'more.weight' and 1 more"),
    ],
)
def test_the_first_parameter_that_differs_is_named(monkeypatch: pytest.MonkeyPatch, change: str, named: str) -> None:
    model = Odd()
    exec(change, {"model": model, "nn": nn, "torch": torch})
    with pytest.raises(WorkloadError) as caught:
        on_ranks(monkeypatch, Odd(), model)
    assert str(caught.value) == f"train.py:make: the ranks' models start apart, {named}"
