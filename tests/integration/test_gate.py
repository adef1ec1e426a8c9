"""The parity check on real ranks: models that DDP refuses, that keep state, and whose ranks are all alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from typed_commands import compared

from xbench.records import BY_HAND

pytestmark = pytest.mark.integration

HEAD = "import torch\nfrom torch import nn\n\n"
PLAIN_BATCH = "(torch.randn(16, 32), torch.randint(0, 10, (16,)))"

HIDDEN_OUTPUT = (
    HEAD
    + f"""
class Out:
    def __init__(self, logits):
        self.logits = logits


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.never = nn.Linear(32, 32), nn.Linear(32, 10), nn.Linear(4, 4)

    def forward(self, x):
        return Out(self.head(self.body(x).relu()))


def make():
    return Net(), {PLAIN_BATCH}, lambda out, y: nn.functional.cross_entropy(out.logits, y)
"""
)
HEADS_BY_TURNS = (
    HEAD
    + f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 10), nn.Linear(32, 10)
        self.steps, self.hidden = 0, None
        self.noise = torch.Generator().manual_seed(0)

    def forward(self, x):
        self.steps += torch.is_grad_enabled()
        x = self.body(x) + torch.randn(32, generator=self.noise)
        self.hidden = x.detach() + (0 if self.hidden is None else self.hidden / 2)
        return (self.a if self.steps % 2 else self.b)(self.hidden + x)


def make():
    return Net(), {PLAIN_BATCH}, nn.CrossEntropyLoss()
"""
)
STATE_OUTSIDE = (
    HEAD
    + f"""
SEEN = [0]


class Net(nn.Linear):
    def forward(self, x):
        SEEN[0] += 1
        return super().forward(x * (1 + SEEN[0] % 5))


def make():
    return Net(32, 10), {PLAIN_BATCH}, nn.CrossEntropyLoss()
"""
)
NO_NUMBER = (
    HEAD
    + """
def make():
    inputs = torch.full((16, 32), float("nan"))
    return nn.Linear(32, 10), (inputs, torch.zeros(16, dtype=torch.int64)), nn.CrossEntropyLoss()
"""
)


MODES = "ddp,single,dear"


def test_what_ddp_refuses_is_held_to_averaging_by_hand(tmp_path: Path) -> None:
    record = compared(tmp_path, HIDDEN_OUTPUT, MODES)
    ddp, *others = record.modes.values()
    assert ddp.status == "failed"
    assert (ddp.error or "").startswith("DDP cannot train this model: Expected to mark a variable ready only once.")
    for mode in others:
        assert mode.step_s is not None
        assert (mode.parity.ok, mode.parity.reference) == (True, BY_HAND)


def test_state_in_attributes_is_put_back_and_heads_by_turns_are_trained_by_ddp_too(tmp_path: Path) -> None:
    record = compared(tmp_path, HEADS_BY_TURNS, MODES)
    for mode in record.modes.values():
        assert (mode.status, mode.parity.ok, mode.parity.reference) == ("ok", True, "ddp")


def test_state_out_of_reach_is_no_fault_of_a_schedule(tmp_path: Path) -> None:
    record = compared(tmp_path, STATE_OUTSIDE, MODES)
    for mode in record.modes.values():
        assert mode.step_s is not None
        assert (mode.parity.ok, mode.parity.shown) == (True, False)
        assert "two runs of this model from one state differ" in (mode.parity.message or "")


def test_a_loss_that_is_no_number_is_named(tmp_path: Path) -> None:
    record = compared(tmp_path, NO_NUMBER, MODES)
    for mode in record.modes.values():
        assert (mode.parity.ok, mode.parity.shown) == (True, False)
        assert (mode.parity.message or "").startswith("the loss of rank 0 is nan at step 1")
    assert any("the loss of rank 0 is nan at the end of the block" in warning for warning in record.warnings)
