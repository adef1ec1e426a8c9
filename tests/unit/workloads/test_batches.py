"""Loaders in place of one batch: epochs, the first batch that is kept, and mistakes in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

from xbench.errors import WorkloadError
from xbench.workloads import check_one_batch, parse_workload
from xbench.workloads.batches import Feed, Inputs, Loader
from xbench.workloads.build import build

CPU = torch.device("cpu")
HEAD = (
    "import torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader, TensorDataset\n"
    "MODEL, LOSS = nn.Linear(3, 2), nn.functional.cross_entropy\n"
    "DATA = TensorDataset(torch.arange(24.0).reshape(8, 3), torch.arange(8) % 2)\n"
)


def batch(number: float, samples: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((samples, 3), number), torch.zeros(samples, dtype=torch.long)


def first_number(inputs: Inputs) -> float:
    assert isinstance(inputs, torch.Tensor)
    return inputs.flatten()[0].item()


def data(samples: int) -> TensorDataset:
    return TensorDataset(torch.arange(float(samples)).unsqueeze(1), torch.zeros(samples))


class Epochs:
    """Two batches an epoch, whose numbers are 10 × epoch + place; counts what begins."""

    def __init__(self) -> None:
        self.epoch = 0
        self.begun = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        self.begun += 1
        return iter([batch(10 * self.epoch), batch(10 * self.epoch + 1)])


def test_what_ends_begins_again_with_the_number_of_its_epoch() -> None:
    source = Epochs()
    loader = Loader("train.py:make", source)
    assert [first_number(loader.take()[0]) for _ in range(5)] == [0, 1, 10, 11, 20]
    assert (loader.epoch, source.begun) == (2, 3)


def test_a_sampler_is_told_the_epoch() -> None:
    sampler: DistributedSampler[Any] = DistributedSampler(data(8), num_replicas=2, rank=0, shuffle=True)
    loader = Loader("train.py:make", DataLoader(data(8), batch_size=2, sampler=sampler))
    for _ in range(3):
        loader.take()
    assert sampler.epoch == 1


def test_each_epoch_begins_in_the_given_context() -> None:
    begun: list[int] = []

    class Context:
        def __enter__(self) -> None:
            begun.append(1)

        def __exit__(self, *_: object) -> None:
            begun.append(-1)

    loader = Loader("train.py:make", Epochs(), Context)
    for _ in range(3):
        loader.take()
    assert begun == [1, -1, 1, -1]


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return ((torch.ones(3), 0) for _ in range(5))


class Broken(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        raise OSError(f"no file\nof number {index}")


def taken(source: Any, batches: int) -> Callable[[], object]:
    def take() -> None:
        loader = Loader("train.py:make", source)
        for _ in range(batches):
            loader.take()

    return take


@pytest.mark.parametrize(
    ("take", "message", "hint"),
    [
        (taken((batch(i) for i in range(3)), 4), "generator ended after 3 batches and cannot be", "itertools.cycle"),
        (taken(iter([]), 1), "its list_iterator has no batch", "drop_last"),
        (taken(DataLoader(data(3), batch_size=4, drop_last=True), 1), "its DataLoader has no batch", "drop_last"),
        (taken(DataLoader(data(7), batch_size=4), 1), "last batch of its DataLoader has 3 samples and", "drop_last"),
        (taken(DataLoader(Endless(), batch_size=4), 2), "batch 2 of its DataLoader has 1 sample and the", "drop_last"),
        (taken(iter([{"x": torch.ones(2)}]), 1), "list_iterator returned a dict as its batch", "(inputs, targets)"),
        (taken(iter([(3, 1)]), 1), "list_iterator returned a int as inputs, which is not", "a tuple of arguments"),
        (taken(iter([batch(1), batch(2, 3)]), 2), "batch 2 of its list_iterator has 3 samples and the others 2", None),
        (taken(iter([(torch.ones(()), 1)]), 1), "a first input of shape (), which has no samples", ""),
        (taken(DataLoader(Broken(), batch_size=2), 1), "DataLoader raised OSError: no file of number 0", ""),
        (taken(DataLoader(Broken(), batch_size=2, num_workers=1), 1), "DataLoader raised OSError: of number 0", ""),
    ],
)
def test_a_mistake_of_a_loader_is_one_sentence(take: Callable[[], object], message: str, hint: str | None) -> None:
    with pytest.raises(WorkloadError) as caught:
        take()
    assert str(caught.value).startswith("train.py:make: ")
    assert message in str(caught.value)
    assert caught.value.hint is None if hint is None else hint in (caught.value.hint or "")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        DataLoader(data(8), batch_size=4),
        DataLoader(data(7), batch_size=4, drop_last=True),
        DataLoader(data(3), batch_size=4),
        DataLoader(Endless(), batch_size=5),
    ],
    ids=["whole", "dropped", "one", "endless"],
)
def test_batches_of_one_size_are_taken_over_epochs(source: Any) -> None:
    taken(source, 5)()


def test_a_single_batch_has_as_many_samples_as_are_drawn() -> None:
    assert [Loader("", DataLoader(data(n), batch_size=4)).batch_size for n in (3, 8)] == [3, 4]


def test_workers_are_named_and_known_to_work_ahead() -> None:
    alone, beside = (Loader("", DataLoader(data(8), batch_size=4, num_workers=number)) for number in (0, 2))
    assert (alone.description, alone.workers) == ("DataLoader", 0)
    assert (beside.description, beside.workers) == ("DataLoader with 2 workers", 2)
    assert Loader("", (batch(i) for i in range(3))).description == "generator"


def feed_of(numbers: list[float]) -> Feed:
    return Feed(Loader("", iter([batch(one) for one in numbers])), batch(0), lambda one: (one[0] + 0.5, one[1]))


def test_a_held_feed_has_the_first_batch_and_goes_on_where_it_was() -> None:
    feed = feed_of([1, 2])
    assert first_number(feed.take()[0]) == 1.5
    with feed.held():
        with feed.held():
            feed.fetch()
        assert feed.take() is feed.first
    assert first_number(feed.take()[0]) == 2.5


def test_a_batch_that_was_fetched_is_the_next_one() -> None:
    feed = feed_of([1, 2])
    feed.fetch()
    feed.fetch()
    assert [first_number(feed.take()[0]) for _ in range(2)] == [1.5, 2.5]


def made(folder: Path, returned: str, rank: int = 0, **options: Any) -> Any:
    (folder / "train.py").write_text(f"{HEAD}def make():\n    return MODEL, {returned}, LOSS\n")
    return build(parse_workload(f"{folder / 'train.py'}:make", **options), CPU, rank=rank)


def test_a_factory_may_return_a_loader(tmp_path: Path) -> None:
    workload = made(tmp_path, "DataLoader(DATA, batch_size=2)")
    assert (workload.batch_size, workload.is_fed, workload.loads_ahead) == (2, True, False)
    assert workload.describe().input == "3 float32 from a DataLoader"
    assert workload.inputs.tolist() == [[0, 1, 2], [3, 4, 5]]
    workload.load()
    assert workload.inputs.tolist() == [[6, 7, 8], [9, 10, 11]]
    assert workload.targets.tolist() == [0, 1]
    assert workload.forward_loss().requires_grad


@pytest.mark.parametrize(("workers", "micro_steps", "burst"), [(0, 1, 1), (1, 1, 1), (3, 1, 3), (3, 2, 2), (2, 4, 1)])
def test_steps_of_a_burst_take_one_batch_of_each_worker(
    tmp_path: Path, workers: int, micro_steps: int, burst: int
) -> None:
    workload = made(tmp_path, f"DataLoader(DATA, batch_size=2, num_workers={workers})", accumulate=micro_steps)
    assert (workload.burst, workload.describe().burst, workload.loads_ahead) == (burst, burst, workers > 0)


def test_a_copy_of_the_workload_takes_from_the_same_loader(tmp_path: Path) -> None:
    workload = made(tmp_path, "DataLoader(DATA, batch_size=2)")
    workload.under(workload.model, None, None).load()
    workload.load()
    assert workload.inputs[0].tolist() == [12, 13, 14]


def test_only_the_first_batch_is_varied_by_rank(tmp_path: Path) -> None:
    workload = made(tmp_path, "DataLoader(DATA, batch_size=4)", rank=1)
    rows = workload.inputs.tolist()
    assert rows[0] == rows[1] != rows[2] == rows[3]
    workload.load()
    assert workload.inputs[:, 0].tolist() == [12, 15, 18, 21]


def test_every_batch_has_the_dtype_of_the_run(tmp_path: Path) -> None:
    workload = made(tmp_path, "DataLoader(DATA, batch_size=2)", dtype="bf16")
    workload.load()
    assert (workload.inputs.dtype, workload.targets.dtype) == (torch.bfloat16, torch.int64)


def test_batches_whose_tensors_differ_in_size_may_have_equal_numbers_of_samples() -> None:
    images = [torch.ones(3, 8 + index) for index in range(6)]
    loader = Loader("train.py:make", [(((images[:4],), torch.ones(4))), (((images[2:],), torch.ones(4)))])
    assert [len(loader.take()[1]) for _ in range(2)] == [4, 4]
    lengths = iter([9, 7, 8])
    steps = DataLoader(data(8), 2, collate_fn=lambda _: (torch.ones(next(lengths), 2), None))
    taken = Loader("train.py:make", steps)
    assert [len(taken.take()[0]) for _ in range(3)] == [9, 7, 8]  # time first
    smaller = Loader("train.py:make", [(((images[:4],), torch.ones(4))), (((images[:3],), torch.ones(3)))])
    smaller.take()
    with pytest.raises(WorkloadError, match="batch 2 of its list has 3 samples and the others 4"):
        smaller.take()


def test_a_live_job_refuses_a_loader(tmp_path: Path) -> None:
    record = made(tmp_path, "DataLoader(DATA, batch_size=2, num_workers=1)").describe()
    with pytest.raises(WorkloadError, match="from a DataLoader with 1 worker, and a live job takes the samples of one"):
        check_one_batch(record, "a live job")
    check_one_batch(made(tmp_path, "(torch.ones(2, 3), torch.tensor([0, 1]))").describe(), "a live job")
