"""Copies of the network in the reference of the parity check, and when they are freed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from xbench.rank import reference
from xbench.rank.main import Rank
from xbench.rank.parity_checker import Reference
from xbench.rank.program import Phase
from xbench.rank.snapshot import Snapshot
from xbench.workloads.preflight import group_of_one
from xbench.workloads.training_step import TrainingStep

STEPS = 2


class Job(TrainingStep):
    """A workload of one layer."""

    def __init__(self) -> None:
        self.model = nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.inputs, self.targets, self.loss = torch.ones(4, 3), torch.zeros(4, 2), None

    def forward_loss(self) -> torch.Tensor:
        return nn.functional.mse_loss(self.model(self.inputs), self.targets)


def session_of(job: Job) -> Any:
    session = SimpleNamespace(
        workload=job, snapshot=Snapshot(job), loss=None, norm=None, lost=None, weights=None, note=lambda state: None
    )
    session.run = SimpleNamespace(compress=None, effort=SimpleNamespace(parity_steps=STEPS))

    def forward_backward(handle: object) -> None:
        job.clear()
        job.backward(job.forward_loss())

    session.forward_backward, session.update = forward_backward, lambda handle: job.update()
    return session


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_second_run_copies_no_state_and_keeps_gradients_of_several_ranks_alone(
    monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: ranks)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, **_: None if tensor.numel() == 2 else tensor.mul_(ranks))
    session = session_of(Job())
    made, *_ = reference._averaged(session, None)
    assert len(made.states) == STEPS + 1
    monkeypatch.setattr(reference, "copies", lambda tensors: pytest.fail("the network was copied once more"))
    again, _, local, averaged, _ = reference._averaged(session, made)
    assert again.states == [made.states[0]]
    assert (len(local), len(averaged)) == ((STEPS, STEPS) if ranks > 1 else (0, 0))


@pytest.mark.parametrize(("free", "short"), [(351, "351 B are free"), (352, None)])
def test_copies_that_the_ranks_of_a_host_cannot_hold_are_not_made(
    monkeypatch: pytest.MonkeyPatch, free: int, short: str | None
) -> None:
    """32 bytes of parameters; for 3 steps 4 states, a moment, and 6 times the gradients: 352 bytes, on `here` twice."""
    session = session_of(Job())
    session.run.effort.parity_steps = 3
    session.program = SimpleNamespace(jobs=1)
    monkeypatch.setattr(reference, "available_bytes", lambda gpus: 10**9)
    monkeypatch.setattr(reference, "gathered", lambda said: [(said[0], said[1], 704), ("there", said[1], free)])
    assert (short is None) == (reference._short_of_memory(session) is None)
    assert short is None or short in str(reference._short_of_memory(session))
    monkeypatch.setattr(reference, "gathered", lambda said: [said, (*said[:2], 703)])
    assert "hold 704 B" in str(reference._short_of_memory(session))


def test_references_are_released_after_the_last_check_of_a_launch() -> None:
    done: list[str] = []
    phases = [Phase(kind="profile"), *(Phase(kind="parity", mode=mode) for mode in ("ddp", "wfbp"))]
    phases += [Phase(kind="block", mode="ddp"), Phase(kind="timeline", mode="ddp")]
    rank: Any = SimpleNamespace(
        program=SimpleNamespace(phases=phases),
        journal=SimpleNamespace(write=lambda event: None),
        note=lambda state: None,
        profile=lambda: done.append("profile"),
        gate=lambda phase: done.append(f"gate {phase.mode}"),
        release_references=lambda: done.append("release"),
        block=lambda phase, number: done.append("block"),
        timeline=lambda phase, number: done.append("timeline"),
        finish=lambda: None,
    )
    Rank.run_all(rank)
    assert done == ["profile", "gate ddp", "gate wfbp", "release", "block", "timeline"]


def test_a_released_reference_holds_no_tensor_and_still_tells_why_ddp_refused() -> None:
    held = Reference([{"a": torch.ones(2)}] * 3, momentum={"a": torch.ones(2)}, ddp_refusal="sparse gradients")
    rank: Any = SimpleNamespace(sessions=[SimpleNamespace(reference=held), SimpleNamespace(reference=None)])
    Rank.release_references(rank)
    assert (held.states, held.momentum, held.ddp_refusal) == ([], {}, "sparse gradients")


def test_a_buffer_that_the_backend_cannot_send_is_named() -> None:
    job = Job()
    job.model.register_buffer("mean", torch.zeros(3))
    with group_of_one():
        assert reference._unsent_buffer(session_of(job), dist.group.WORLD) == ""
        job.model.register_buffer("counts", torch.zeros(3, dtype=torch.int16))
        said = reference._unsent_buffer(session_of(job), dist.group.WORLD)
    assert "'counts'" in said
    assert "int16" in said
