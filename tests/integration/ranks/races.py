"""One rank on an emulated link whose collectives are out of reach while they travel: who reads too early trains on NaN.

`races.py DEVICE` prints one line a schedule: its name, and whether it trained what the same schedule trains on an
ordinary link; then whether an engine that never waits is caught.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
from schedule_training import Net, batch, buckets_of, make
from torch import Tensor, nn

from xbench.emulation import pacer_of
from xbench.emulation.cuda import StreamLink, StreamWork
from xbench.emulation.group import HostWork, Send, new_group
from xbench.emulation.pacer import Pacer
from xbench.modes import MODES
from xbench.records import CostModel, EmulatedLink
from xbench.schedules.base import AttachConfig, Schedule
from xbench.schedules.bucket import CommBucket
from xbench.schedules.next_forward import NextForward

SCHEDULES = ("ddp", "single", "wfbp", "mgwfbp", "optimal", "dear", "priority")
STEPS = 4
LATENCY_S = 2e-3
LINK = EmulatedLink(
    model=CostModel(
        backend="formula", world_size=4, alpha_s=LATENCY_S, beta_s_per_byte=0.0, alpha_ci95=(LATENCY_S, LATENCY_S),
        beta_ci95=(0.0, 0.0), max_relative_residual=0.0, points=[],
    )
)  # fmt: skip


class Hidden:
    """Tensors in transit, which are NaN until they arrive."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = [tensor for tensor in tensors if tensor.is_floating_point()]
        self._kept = [tensor.clone() for tensor in self._tensors]
        for tensor in self._tensors:
            tensor.fill_(float("nan"))
        self._lock = threading.Lock()

    def restore(self) -> None:
        with self._lock:
            for tensor, kept in zip(self._tensors, self._kept, strict=True):
                tensor.copy_(kept)
            self._tensors, self._kept = [], []


class HiddenWork(HostWork):
    """A collective on the host's clock, whose tensors are hidden until its end."""

    def __init__(self, pacer: Pacer, tensors: Sequence[Tensor], *sent: object) -> None:
        self.hidden = Hidden(tensors)
        super().__init__(pacer, tensors, *sent)  # type: ignore[arg-type]

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        super().wait()
        self.hidden.restore()
        return True

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        def arrived(future: torch.futures.Future[list[Tensor]]) -> list[Tensor]:
            self.hidden.restore()
            return future.value()

        return super().get_future().then(arrived)


def hiding(link: StreamLink) -> Send:
    """Send over a GPU's link, on whose stream the tensors are hidden and shown again."""

    def send(tensors: Sequence[Tensor], inner: dist.Work | None, nbytes: int, share: float) -> dist.Work:
        link.stream.wait_stream(torch.cuda.current_stream(link.device))
        with torch.cuda.stream(link.stream):
            hidden = Hidden(tensors)
        link.send(tensors, inner, nbytes, share)
        with torch.cuda.stream(link.stream):
            hidden.restore()
            done = torch.cuda.Event()
            done.record(link.stream)
        return StreamWork(tensors, link.stream, done, inner)

    return send


def trained(schedule: str, group: dist.ProcessGroup | None, device: torch.device, wait: str) -> list[Tensor]:
    """Parameters after a few steps; every step computes something between backward and update."""
    model, optimizer = make(Net)
    model.to(device)
    kind: type[Schedule] = MODES.load(schedule)  # type: ignore[assignment]
    setup = AttachConfig(model, optimizer, buckets_of(model, schedule), group, wait, True)  # type: ignore[arg-type]
    with kind().attach(setup) as handle:
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=True)
            torch.manual_seed(step)
            model.use_sometimes = step % 2 == 0  # type: ignore[assignment]
            tokens, targets = (part.to(device) for part in batch(step, 0))
            nn.functional.cross_entropy(handle.model(tokens), targets).backward()
            optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def same(schedule: str, group: dist.ProcessGroup, device: torch.device, wait: str) -> bool:
    alone, on_link = trained(schedule, None, device, wait), trained(schedule, group, device, wait)
    return all(torch.allclose(a, b, rtol=1e-6, atol=1e-7) for a, b in zip(alone, on_link, strict=True))


def finish_without_waiting(bucket: CommBucket, changed: object) -> None:
    bucket.work = None


def is_caught(broken: type, method: str, replacement: Callable[..., object], run: Callable[[], bool]) -> str:
    """Return True if `run` notices that a class has another method."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broken, method, replacement)
        return "not caught" if run() else "caught"


def main() -> None:
    device = torch.device(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=0, world_size=1)
    send = hiding(StreamLink(LINK, device)) if device.type == "cuda" else partial(HiddenWork, pacer_of(LINK))
    group = new_group(send, LINK.model.world_size, on_stream=device.type == "cuda")
    for schedule in SCHEDULES:
        for wait in ("backward", "step"):
            print(f"{schedule} {wait}: {'same' if same(schedule, group, device, wait) else 'differs'}", flush=True)
    end = is_caught(CommBucket, "finish", finish_without_waiting, lambda: same("optimal", group, device, "step"))
    print(f"an engine that never waits: {end}", flush=True)
    for schedule in ("dear", "priority"):
        end = is_caught(NextForward, "_land", lambda *_: None, lambda: same(schedule, group, device, "step"))  # noqa: B023
        print(f"a {schedule} that does not wait before a layer: {end}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
