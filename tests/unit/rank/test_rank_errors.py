"""An error of the user's code in one sentence, and which errors are the failure of one mode."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._dynamo.exc import InternalTorchDynamoError

from xbench.errors import SpecError, UsageError, WorkloadError
from xbench.rank import profile_phase, rank_errors, store
from xbench.rank.events import Event
from xbench.rank.rank_errors import MOST, attempt, message_of, place_of, refusals
from xbench.schedules import parse_mode


def test_the_innermost_line_of_the_users_code(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return helper(x)\n\n"
        "def helper(x):\n    return torch.nn.functional.linear(x, x[:, :1])\n"
    )
    spec = importlib.util.spec_from_file_location("train", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(RuntimeError) as caught:
        module.Net()(torch.ones(2, 2))
    assert place_of(caught.value) == "train.py:8"


def test_an_error_that_no_code_of_the_user_raised_has_no_place() -> None:
    assert place_of(ValueError("never raised")) is None


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AssertionError(), "AssertionError"),
        (ValueError("shapes\n   differ"), "ValueError: shapes differ"),
        (RuntimeError("no way\nException raised from f at g.cpp:1\nframe #0: x"), "RuntimeError: no way"),
    ],
)
def test_all_lines_but_those_of_the_stack(error: Exception, said: str) -> None:
    assert message_of(error) == said


def test_a_long_text_ends_after_a_whole_word() -> None:
    said = message_of(ValueError("word " * 1000))
    assert len(said) <= MOST + 20
    assert said.endswith("word …")


# --- modes that are refused ------------------------------------------------------------------------------------------


def attempted(
    monkeypatch: pytest.MonkeyPatch, error: Exception, mode: str, ranks: int = 1
) -> tuple[dict[str, bool], list[Event]]:
    """The refused modes and the journal of the first rank, which alone raised this error in a block of a mode."""
    monkeypatch.setattr(rank_errors.dist, "all_reduce", lambda *_, **__: None)
    monkeypatch.setattr(rank_errors.dist, "get_world_size", lambda: ranks)
    monkeypatch.setattr(store, "ALIKE_S", 0.0)
    written: list[Event] = []
    notes: set[str] = set()
    session: Any = SimpleNamespace(
        workload=None,
        rank=0,
        job=0,
        refused={},
        device=torch.device("cpu"),
        snapshot=SimpleNamespace(restore=lambda workload: None),
        journal=SimpleNamespace(write=written.append),
        board=SimpleNamespace(put=lambda name, text: notes.add(name), has=notes.__contains__),
    )

    def block() -> None:
        raise error

    attempt(session, parse_mode(mode), block)
    return session.refused, written


@pytest.mark.parametrize(
    ("error", "mode", "told"),
    [
        (UsageError("sparse gradients"), "wfbp", "sparse gradients"),
        (
            InternalTorchDynamoError("no kernel"),
            "ddp+compile",
            "torch.compile failed: InternalTorchDynamoError: no kernel",
        ),
    ],
)
def test_what_a_schedule_refuses_or_no_rank_can_compile_is_the_failure_of_its_mode(
    monkeypatch: pytest.MonkeyPatch, error: Exception, mode: str, told: str
) -> None:
    refused, (event,) = attempted(monkeypatch, error, mode)
    assert refused == {mode: True}
    assert (event.mode, event.message) == (mode, told)


@pytest.mark.parametrize(
    ("error", "mode", "ranks"),
    [
        # of a compiler that fails on one rank, the other is in a collective
        (InternalTorchDynamoError("no space left on device"), "ddp+compile", 2),
        (InternalTorchDynamoError("CUDA out of memory. Tried to allocate 2 GiB"), "ddp+compile", 1),
        (InternalTorchDynamoError("DefaultCPUAllocator: can't allocate memory"), "ddp+compile", 1),
        (RuntimeError("no kernel"), "ddp+compile", 1),
        (WorkloadError("train.py:make: its generator ended"), "wfbp", 1),  # the other modes have no batch either
        (UsageError("sparse gradients"), "crossover", 1),  # the other job waits for its turn
    ],
)
def test_an_error_that_ends_the_run_is_raised(
    monkeypatch: pytest.MonkeyPatch, error: Exception, mode: str, ranks: int
) -> None:
    with pytest.raises(type(error), match=str(error)[:10]):
        attempted(monkeypatch, error, mode, ranks)


def test_a_refusal_in_the_profile_is_remarked() -> None:
    events: list[Event] = []
    session: Any = SimpleNamespace(rank=0, journal=SimpleNamespace(write=events.append))
    with profile_phase._refusals(session, "candidates were not tried") as said:
        raise UsageError("sparse gradients")
    assert said == ["sparse gradients"]
    assert [event.message for event in events] == ["candidates were not tried: sparse gradients"]  # type: ignore[attr-defined]


def test_a_refusal_is_caught_and_an_error_of_the_workload_is_not() -> None:
    with refusals() as said:
        raise SpecError("not this model")
    assert said == ["not this model"]
    with refusals() as said:
        pass
    assert said == []
    with pytest.raises(WorkloadError, match="ended"), refusals():
        raise WorkloadError("the iterator ended")
