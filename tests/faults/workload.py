"""A small model that goes wrong on demand: `xbench compare tests/faults/workload.py:make`.

The harness steers it through files in the folder $XBENCH_FAULTS: `slow` makes each forward pass take SLOW_S more, so
that a fault can be aimed at one block, and `go` triggers the fault that XBENCH_FAULT names, in the rank that
XBENCH_FAULT_RANK names (or in the probe, where it is 'probe'). `backward-` before it: inside the backward pass.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

SLOW_S = 0.06
FOLDER = os.environ.get("XBENCH_FAULTS", "/nonexistent")
GO = os.path.join(FOLDER, "go")
SLOW = os.path.join(FOLDER, "slow")
FAULT = os.environ.get("XBENCH_FAULT", "")
WHAT = FAULT.removeprefix("backward-")
IN_BACKWARD = FAULT != WHAT
RANK = os.environ.get("XBENCH_FAULT_RANK", "1")
MEGABYTE = 1_000_000


def _fail(message: str) -> None:
    raise RuntimeError(message)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _spin() -> None:
    while True:
        pass


def _print(megabytes: int) -> None:
    for _ in range(megabytes):
        print("y" * MEGABYTE, flush=True)
        print("z" * MEGABYTE, file=sys.stderr, flush=True)


def _leave_folder() -> None:
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)


ACTIONS: dict[str, Callable[[], Any]] = {
    "raise": lambda: _fail("planted error\nwith a second line \x1b[31mred\x1b[0m"),
    "raise-huge": lambda: _fail("x" * 5 * MEGABYTE),
    "exit0": lambda: sys.exit(0),
    "exit3": lambda: sys.exit(3),
    "_exit0": lambda: os._exit(0),
    "_exit7": lambda: os._exit(7),
    "interrupt": _interrupt,
    "segv": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "hang": lambda: time.sleep(10_000),
    "spin": _spin,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "print": lambda: _print(40),
    "print-forever": lambda: _print(3),
    "close-files": lambda: os.closerange(3, 1000),
    "leave-folder": _leave_folder,
}
ONCE = ("stop", "print")
"""These strike once; the others strike in every step."""

struck = False


def strike(tensor: Tensor) -> Tensor:
    """The tensor, after the fault has struck where it is due."""
    global struck
    if not WHAT or (WHAT in ONCE and struck):
        return tensor
    here = os.environ["RANK"] == RANK and os.path.exists(GO) if "RANK" in os.environ else RANK == "probe"
    if not here:
        return tensor
    struck = True
    if WHAT in ("nan", "inf"):
        return tensor * float(WHAT)
    ACTIONS[WHAT]()
    return tensor


class Trap(torch.autograd.Function):
    """The identity, whose backward pass strikes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return strike(gradient)


class Net(nn.Module):
    """Four layers of 32 × 32 with a trap in their middle."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        if "RANK" in os.environ and os.path.exists(SLOW):
            time.sleep(SLOW_S)
        for number, layer in enumerate(self.layers):
            x = torch.relu(layer(x)) + x
            if number == 1:
                x = Trap.apply(x) if IN_BACKWARD else strike(x)
        return x


def make() -> tuple[nn.Module, tuple[Tensor, Tensor], Callable[..., Tensor]]:
    """Model, (inputs, targets), loss."""
    return Net(), (torch.randn(8, 32), torch.randn(8, 32)), nn.functional.mse_loss


class Pixels(nn.Module):
    """The same trap in a model for `xbench converge`: images of 8 × 8 to ten scores."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = Net(), nn.Linear(32, 10)
        self.first = nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.net(self.first(x.flatten(1))))
        return scores


def make_pixels() -> tuple[nn.Module, tuple[Tensor, Tensor], Callable[..., Tensor]]:
    """Model, (images, labels), loss."""
    return Pixels(), (torch.randn(16, 1, 8, 8), torch.randint(0, 10, (16,))), nn.functional.cross_entropy
