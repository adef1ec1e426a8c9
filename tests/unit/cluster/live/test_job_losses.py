"""Another order of additions changes a loss by rounding; a job that went wrong, by far more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from xbench.cluster.live.attempt import LiveJob, attempt_of, share
from xbench.cluster.live.samples import Order, samples_of
from xbench.workloads.build import build

STEPS, STOP = 40, 20
ROUNDING = 1e-5
"""Share of a loss; no mistake is below a hundred times as much."""
WORKLOADS = ("synthetic:layers=4,bytes=4k,width=16,compute=1", "synthetic:layers=8,bytes=1k,width=8")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As a rank with one core: more threads would spend their time meeting."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trained(
    workload: str, workers: int = 1, *, forgotten: bool = False, steps: Sequence[int] = range(STEPS)
) -> dict[int, float]:
    """Losses of a job whose shares are computed one after the other, as its ranks do; `steps` by their samples."""
    spec = attempt_of(LiveJob("a", workload, STEPS, batch_size=8, seed=3), (0,)).workload
    made = build(spec, torch.device("cpu"))
    samples = samples_of(made, 8)
    order = Order(spec.seed, samples.count, 8)
    found = {}
    for number, step in enumerate(steps, start=1):
        if forgotten and step == STOP:
            made.optimizer.state.clear()
        numbers = order.of_step(step)
        made.optimizer.zero_grad()
        total = 0.0
        for rank in range(workers):
            mine = share(8, workers, rank)
            made.inputs, made.targets = samples.take([numbers[place] for place in mine])
            loss = made.forward_loss() * (len(mine) / 8)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        made.optimizer.step()
        found[number] = total
    return found


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_tolerance_lies_between_rounding_and_mistakes(workload: str) -> None:
    whole = trained(workload)

    def worst(cut: dict[int, float]) -> float:
        return max(abs(cut[step] / whole[step] - 1) for step in whole)

    assert worst(trained(workload)) == 0
    assert worst(trained(workload, workers=3)) < ROUNDING
    twice = [*range(STOP), *range(STOP - 1, STEPS - 1)]
    left_out = [*range(STOP), *range(STOP + 1, STEPS + 1)]
    for wrong in (trained(workload, forgotten=True), trained(workload, steps=twice), trained(workload, steps=left_out)):
        assert worst(wrong) > 100 * ROUNDING
