"""Memory that the parity check takes on a GPU, counted on one that does not exist."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_reference import STEPS, Job, session_of
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from xbench.rank import parity_checker, parity_power, reference
from xbench.rank.parity_checker import Reference

DEVICE = torch.device("meta")
"""What stands for the GPU: a device that needs no driver, and whose operations the test computes itself."""

SIDE = 64


class OnGpu(Tensor):
    """A tensor of the GPU, which the host computes."""

    elem: Tensor

    @staticmethod
    def __new__(cls, elem: Tensor, gpu: Gpu) -> OnGpu:
        made: OnGpu = Tensor._make_wrapper_subclass(
            cls, elem.shape, strides=elem.stride(), dtype=elem.dtype, device=DEVICE
        )
        made.elem = elem
        gpu.holds(made)
        return made

    def tolist(self) -> Any:
        return self.elem.tolist()

    def __tensor_flatten__(self) -> tuple[list[str], None]:  # for digests
        return ["elem"], None

    @staticmethod
    def __tensor_unflatten__(*_: Any) -> Tensor:
        raise AssertionError("not needed")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside of the GPU's mode")


class Gpu(TorchDispatchMode):
    """Operations of the host and of the GPU. One with tensors of both is an error, unless it copies.

    `most_bytes`: the largest memory that tensors of the GPU have had.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held: Counter[int] = Counter()
        self._bytes = self.most_bytes = 0

    def holds(self, made: OnGpu) -> None:
        storage = made.elem.untyped_storage()
        key, nbytes = storage._cdata, storage.nbytes()
        if not self._held[key]:
            self._bytes += nbytes
            self.most_bytes = max(self.most_bytes, self._bytes)
        self._held[key] += 1
        weakref.finalize(made, self._frees, key, nbytes)

    def _frees(self, key: int, nbytes: int) -> None:
        self._held[key] -= 1
        if not self._held[key]:
            self._bytes -= nbytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        ours = [one for one in given if isinstance(one, OnGpu)]
        copies = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        if ours and not copies and any(one.dim() for one in given if not isinstance(one, OnGpu)):
            raise AssertionError(f"{func} with tensors of the GPU and of the host")
        target = kwargs.get("device")
        on_gpu = bool(ours) if target is None else torch.device(target) == DEVICE
        if target is not None:
            kwargs["device"] = torch.device("cpu")
        plain = tree_map(lambda one: one.elem if isinstance(one, OnGpu) else one, (args, kwargs))
        result = func(*plain[0], **plain[1])
        if func._schema.name.endswith("_") or func is torch.ops.aten.copy_.default:
            return args[0]
        return tree_map(lambda one: OnGpu(one, self) if on_gpu and isinstance(one, Tensor) else one, result)


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with Gpu() as mode:
        yield mode


def large_job(device: torch.device) -> Job:
    """A job of one layer, whose gradients a test gives."""
    job = Job()
    torch.manual_seed(0)
    weights = torch.randn(SIDE, SIDE)
    job.model = nn.Linear(SIDE, SIDE, bias=False)
    job.model.weight = nn.Parameter(weights.to(device))
    job.optimizer = torch.optim.SGD(job.model.parameters(), lr=0.1, momentum=0.9)
    return job


def checked(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> tuple[Reference, float, str | None]:
    """The reference of two ranks with opposite gradients, its second run's worst difference, and the check's power."""
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, **_: None if tensor.dim() == 1 else tensor.add_(0.25))
    monkeypatch.setattr(
        dist, "all_gather_object", lambda found, said, group=None: found.__setitem__(slice(2), [said] * 2)
    )
    monkeypatch.setattr(parity_checker, "PIECE", SIDE)  # a large layer has many
    tensor = torch.tensor  # makes one on the device before the mode sees it
    monkeypatch.setattr(torch, "tensor", lambda data, device="cpu": tensor(data).to(device))
    job = large_job(device)
    session = session_of(job)

    def forward_backward(handle: object) -> None:
        torch.manual_seed(int(job.model.weight.sum() * 1000))
        job.model.weight.grad = torch.randn(SIDE, SIDE).to(device)

    session.forward_backward = forward_backward
    made = reference._averaged(session, None)[0]
    _, second, local, averaged, _ = reference._averaged(session, made)
    why = parity_power.not_shown(
        job, session.snapshot, lambda: reference.checker_of(session, made), local, averaged
    )  # fmt: skip
    return made, max(second.tolerances().values()), why


def test_states_moments_and_gradients_are_in_the_host_s_memory(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the GPU is what a step holds: parameters, momentum and gradients, and a parameter's copy in passing."""
    made, off, _ = checked(DEVICE, monkeypatch)
    assert {one.device.type for state in (*made.states, made.momentum) for one in state.values()} == {"cpu"}
    assert len(made.states) == STEPS + 1
    assert off == 0
    assert gpu.most_bytes < 4.5 * SIDE * SIDE * 4


def test_the_check_says_the_same_as_on_a_cpu(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = checked(torch.device("cpu"), monkeypatch), checked(DEVICE, monkeypatch)
    assert here[1:] == there[1:]
    for mine, other in zip(here[0].states, there[0].states, strict=True):
        assert torch.equal(mine["weight"], other["weight"])
