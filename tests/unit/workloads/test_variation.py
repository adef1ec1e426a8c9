"""The batch of each rank: what each variation does to it, and which one a workload gets."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from xbench.spec import WorkloadSpec
from xbench.workloads.custom import drawn, vary
from xbench.workloads.trial import difference, varied
from xbench.workloads.workload import Workload

CROSS_ENTROPY = nn.CrossEntropyLoss()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def workload(model, inputs, targets, loss=CROSS_ENTROPY) -> Workload:
    return Workload(WorkloadSpec(name="train.py:make"), model, inputs, targets, loss, 4, "")


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
    inputs, (targets, whole) = vary(batch, 1)
    assert inputs["x"].flatten().tolist() == targets.tolist() != numbers.tolist()
    assert (inputs["mask"].shape, inputs["flag"], whole.item()) == ((2, 2), True, 3)
    assert vary(batch, 0) is batch


def test_memory_format_and_leaves_stay_as_they_are() -> None:
    images = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    (found, _) = vary((images, None), 1)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert found.requires_grad
    assert found.is_leaf


def test_noise_is_of_the_inputs_own_size_and_spares_masks() -> None:
    mask = torch.tensor([[0.0, float("-inf")]] * 3)
    ones, ids, x = torch.ones(3, 2), torch.arange(3), 5 * torch.randn(3, 100)
    (same_mask, same_ones, same_ids, noisy), targets = vary(((mask, ones, ids, x), ids), 1, "noise")
    assert torch.equal(same_ones, ones)
    assert torch.equal(same_ids, ids)
    assert targets is ids
    assert torch.equal(same_mask, mask)
    assert 0.08 < float((noisy - x).std() / x.std()) < 0.12


def test_a_sequence_is_rolled_by_the_rank_against_its_targets() -> None:
    tokens = torch.tensor([[1, 2, 3, 4]])
    (found, floats), targets = vary(((tokens, tokens.float()), tokens), 2, "sequence")
    assert found.tolist() == [[3, 4, 1, 2]]
    assert torch.equal(floats, tokens.float())
    assert targets is tokens


class Categories(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(5, 8), nn.Linear(8, 3)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(codes.round().long()).flatten(1))


def test_codes_and_probabilities_in_floats_stay_within_what_the_model_takes() -> None:
    codes, targets = torch.randint(0, 5, (16, 1)).float(), torch.randint(0, 3, (16,))
    assert varied(workload(Categories(), codes, targets)) == ("samples", [])
    inside = torch.rand(16, 4)
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
    assert varied(workload(model, inside, inside, nn.functional.binary_cross_entropy)) == ("samples", [])


def test_labels_inside_the_inputs_move_with_their_samples() -> None:
    class Labelled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(20, 20)

        def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return CROSS_ENTROPY(self.table(ids).flatten(0, 1), labels.flatten())

    ids = torch.randint(0, 20, (4, 6))
    one = workload(Labelled(), {"ids": ids, "labels": ids}, None, lambda loss, _: loss)
    assert varied(one) == ("samples", [])
    inputs, _ = vary((one.inputs, None), 1)
    assert torch.equal(inputs["ids"], inputs["labels"])


def test_one_row_of_tokens_is_rolled_and_one_row_of_numbers_gets_noise() -> None:
    tokens = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(24, 3))
    assert varied(workload(tokens, torch.randint(0, 20, (1, 6)), torch.tensor([1]))) == ("sequence", [])
    assert varied(workload(nn.Linear(6, 3), torch.randn(1, 6), torch.tensor([1]))) == ("noise", [])


def test_a_variation_that_the_model_refuses_is_told() -> None:
    class Sorted(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(set(x[:, 0].tolist())) < len(x):
                raise ValueError("a sample stands twice")
            return super().forward(x)

    variation, told = varied(workload(Sorted(4, 3), torch.randn(8, 4), torch.randint(0, 3, (8,))))
    assert variation == "noise"
    assert told == [
        "train.py:make: the ranks' batches differ by noise on the inputs, for repeating some samples makes the model "
        "raise ValueError: a sample stands twice"
    ]


def test_where_nothing_changes_the_gradient_it_is_said() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(20, 4), nn.Linear(4, 3)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(ids).mean(1))

    variation, told = varied(workload(Bag(), torch.randint(0, 20, (1, 6)), torch.tensor([1])))
    assert variation == "none"
    assert told[0].startswith("train.py:make: all ranks have (nearly) equal gradients")


def test_batch_norm_and_dropout_do_not_make_equal_batches_look_different() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    same = torch.ones(4, 6)
    assert varied(workload(model, same, torch.tensor([1, 1, 1, 1]))).variation == "none"


def test_gradients_are_compared_by_norm() -> None:
    a = [torch.tensor([3.0, 0.0]), torch.tensor([4.0]), None]
    assert difference(a, a) == 0.0
    assert difference(a, [torch.tensor([3.0, 0.0]), torch.tensor([4.5]), None]) == pytest.approx(0.1)
    assert difference(a, [torch.tensor([3.0, 0.0]), torch.tensor([4.0]), torch.tensor([5.0])]) == pytest.approx(1.0)
    assert difference([torch.zeros(2)], [torch.zeros(2)]) == 0.0
    assert not difference(a, [torch.tensor([float("nan"), 0.0]), torch.tensor([4.0]), None]) < 1
