"""What ranks are told, how a batch is shared, and which samples a step has."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from xbench.cluster.live.attempt import attempt_of, losses, next_attempt, share
from xbench.cluster.live.job_rank import EPOCH_STEPS, Order, mixed, samples_of
from xbench.cluster.live.jobs_file import JobEntry
from xbench.errors import WorkloadError
from xbench.workloads.build import build

SYNTHETIC = "synthetic:layers=2,bytes=4k,width=8"
JOB = JobEntry(name="a", workload=SYNTHETIC, steps=100, batch_size=6, seed=3)


@given(st.integers(1, 200), st.data())
def test_shares_are_the_whole_batch_once_and_even(batch_size: int, data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, batch_size))
    shares = [share(batch_size, workers, rank) for rank in range(workers)]
    assert [place for one in shares for place in one] == list(range(batch_size))
    sizes = {len(one) for one in shares}
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


def test_a_job_s_key_is_its_workload_seed_and_batch() -> None:
    keys = {
        attempt_of(JOB.model_copy(update=change), slots).key
        for change in ({}, {"steps": 7}, {"name": "b"}, {"checkpoint_steps": 3})
        for slots in ((0,), (1, 0))
    }
    assert len(keys) == 1
    for change in ({"seed": 4}, {"batch_size": 7}, {"workload": SYNTHETIC + ",compute=1"}):
        assert attempt_of(JOB.model_copy(update=change), (0,)).key not in keys


def test_losses_of_steps_that_were_done_again_are_the_last(tmp_path: Path) -> None:
    for told in ([(1, 0.5), (2, 0.4), (3, 0.3)], [(3, 0.35), (4, 0.25)]):
        made = next_attempt(tmp_path, attempt_of(JOB, (0,)))
        lines = [json.dumps({"event": "hello", "t": 0.0})]
        lines += [json.dumps({"event": "step", "t": 1.0, "step": step, "loss": loss}) for step, loss in told]
        (made / "job0-rank0.jsonl").write_text("\n".join(lines) + '\n{"event": "st', encoding="utf-8")
    assert losses(tmp_path) == {1: 0.5, 2: 0.4, 3: 0.35, 4: 0.25}
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["incarnation-0001", "incarnation-0002"]


@given(st.integers(0, 2**31 - 1), st.integers(1, 40), st.integers(1, 5))
def test_an_epoch_has_every_sample_once(seed: int, batch_size: int, batches: int) -> None:
    order = Order(seed, batch_size * batches, batch_size)
    for epoch in range(2):
        taken = [one for step in range(batches) for one in order.of_step(epoch * batches + step)]
        assert Counter(taken) == Counter(range(batch_size * batches))


def test_a_step_s_samples_do_not_depend_on_the_steps_before() -> None:
    through = Order(5, 96, 6)
    told = [through.of_step(step) for step in range(40)]
    assert [Order(5, 96, 6).of_step(step) for step in range(40)] == told
    assert Order(6, 96, 6).of_step(0) != told[0]
    with pytest.raises(ValueError, match="a batch of 7 from 6 samples"):
        Order(0, 6, 7)


@pytest.mark.parametrize("workload", [SYNTHETIC, "resnet18:image-size=32", "gpt2-small:seq-len=4", "bert-base"])
def test_shares_of_a_batch_are_its_samples_bit_by_bit(workload: str) -> None:
    spec = attempt_of(JOB.model_copy(update={"workload": workload}), (0,)).workload
    samples = samples_of(build(spec, torch.device("meta")), 6)  # without a hundred million parameters
    assert samples.count == 6 * EPOCH_STEPS
    numbers = Order(spec.seed, samples.count, 6).of_step(3)
    whole = samples.take(numbers)
    parts = [samples.take([numbers[place] for place in share(6, 4, rank)]) for rank in range(4)]
    for place in range(2):
        assert torch.equal(torch.cat([part[place] for part in parts]), whole[place])
        assert whole[place].shape[0] == 6
    other = samples.take([number + 1 for number in numbers])
    assert not torch.equal(other[0], whole[0])


FACTORY = """
import torch

def make():
    model = torch.nn.Linear(3, 1)
    rows = torch.arange(24.0).reshape(8, 3)
    return model, ({"input": rows}, torch.arange(8)), lambda out, target: ((out[:, 0] - target) ** 2).mean()
"""


def test_a_factory_s_batch_is_the_set_of_samples(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FACTORY, encoding="utf-8")
    spec = attempt_of(JOB.model_copy(update={"workload": f"{tmp_path}/train.py:make"}), (0,)).workload
    workload = build(spec, torch.device("cpu"))
    samples = samples_of(workload, 6)
    assert samples.count == 8
    inputs, targets = samples.take([7, 0])
    assert inputs["input"].tolist() == [[21, 22, 23], [0, 1, 2]]
    assert targets.tolist() == [7, 0]
    with pytest.raises(WorkloadError, match="its factory made 8 samples, and a step wants 9"):
        samples_of(workload, 9)


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=4))
def test_mixed_seeds_are_taken_by_torch(parts: list[int]) -> None:
    seed = mixed(*parts)
    assert 0 <= seed < 2**63
    assert mixed(*parts) == seed
    assert mixed(*parts, 1) != seed
