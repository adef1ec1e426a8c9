"""A parameter whose values are elsewhere: every use of them is refused, and its memory is free."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from xbench.errors import UsageError
from xbench.schedules.shard_pair import ParameterInShards, WholeValues

USES: dict[str, Callable[[Any], object]] = {
    "validation": lambda p: nn.functional.linear(torch.ones(1, 3), p),
    "its layer": lambda p: layer_of(p)(torch.ones(1, 3)),
    "functional_call": lambda p: torch.func.functional_call(nn.Linear(3, 2), {"weight": p}, torch.ones(1, 3)),
    "clamp_": lambda p: p.clamp_(0, 1),
    "lerp_": lambda p: torch.ones(2, 3).lerp_(p, 0.5),
    "copy_ from it": lambda p: torch.ones(2, 3).copy_(p),
    "copy_ into it": lambda p: p.copy_(torch.ones(2, 3)),
    "norm": lambda p: p.norm(),
    "foreach": lambda p: torch._foreach_mul_([p], 2.0),
    "aten": lambda p: torch.ops.aten.mul(p, 2.0),
    "index": lambda p: p[0, 0],
    "set an index": lambda p: p.__setitem__(0, 1.0),
    "compare": lambda p: p == 1,
    "detach": lambda p: p.detach(),
    "data": lambda p: p.data,
    "set data": lambda p: setattr(p, "data", torch.ones(2, 3)),
    "grad": lambda p: p.grad,
    "set grad": lambda p: setattr(p, "grad", None),
    "hook": lambda p: p.register_hook(lambda gradient: gradient),
    "later hook": lambda p: p.register_post_accumulate_grad_hook(lambda _: None),
    "clip": lambda p: nn.utils.clip_grad_norm_([p], 1.0),
    "vector": lambda p: nn.utils.parameters_to_vector([p]),
    "numpy": lambda p: p.numpy(),
    "np.asarray": np.asarray,
    "DLPack": torch.from_dlpack,
    "address": lambda p: p.data_ptr(),
    "storage": lambda p: p.untyped_storage(),
    "torch.save": lambda p: torch.save(p, io.BytesIO()),
    "pickle": pickle.dumps,
    "deepcopy": copy.deepcopy,
    "state_dict": lambda p: layer_of(p).state_dict(),
    "deepcopy of its layer": lambda p: copy.deepcopy(layer_of(p)),
    "double": lambda p: layer_of(p).double(),
    "share_memory": lambda p: p.share_memory_(),
    "new optimizer": lambda p: torch.optim.SGD([p], lr=0.1).step(),
    "backward": lambda p: p.sum().backward(),
}


def layer_of(parameter: nn.Parameter) -> nn.Linear:
    layer = nn.Linear(3, 2, bias=False)
    layer.weight = parameter
    return layer


def taken() -> tuple[nn.Parameter, WholeValues]:
    parameter = nn.Parameter(torch.arange(6.0).view(2, 3))
    return parameter, WholeValues(parameter)


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_every_use_of_values_that_are_elsewhere_is_refused(use: Callable[[Any], object]) -> None:
    parameter, _ = taken()
    with pytest.raises(UsageError, match="the schedule has them in shards"):
        use(parameter)


def test_what_a_parameter_is_can_be_read() -> None:
    parameter, values = taken()
    assert isinstance(parameter, nn.Parameter)
    assert (parameter.shape, parameter.numel(), parameter.dtype) == ((2, 3), 6, torch.float32)
    assert (parameter.requires_grad, parameter.is_leaf, parameter.device.type) == (True, True, "cpu")
    assert repr(parameter) == f"<{ParameterInShards.SAID}>"
    assert parameter in {parameter}
    with torch.no_grad():
        values.give_back()
    assert type(parameter) is nn.Parameter


def test_memory_is_freed() -> None:
    parameter = nn.Parameter(torch.ones(1000))
    digest = np.asarray(parameter.detach()).tobytes()
    values = WholeValues(parameter)
    with torch._C.DisableTorchFunctionSubclass():
        assert parameter.untyped_storage().nbytes() == 4
        assert parameter.isnan().all()
    with torch.no_grad():
        values.spoil_views()
        values.give_back()
        parameter.fill_(1.0)
    assert np.asarray(parameter.detach()).tobytes() == digest


def test_a_view_of_the_memory_shows_nan_and_then_the_values_again() -> None:
    flat = torch.arange(6.0)
    one, other = nn.Parameter(flat[:2]), nn.Parameter(flat[2:].view(2, 2))
    with torch.no_grad():
        both = [WholeValues(one), WholeValues(other)]
        for values in both:
            values.spoil_views()
        assert flat.isnan().all()
        for values, parameter in zip(both, (one, other), strict=True):
            values.give_back()
            parameter.fill_(parameter.numel())
    assert flat.tolist() == [2, 2, 4, 4, 4, 4]


def test_memory_of_other_processes_stays_theirs() -> None:
    parameter = nn.Parameter(torch.ones(3).share_memory_())
    address = parameter.data_ptr()
    values = WholeValues(parameter)
    with torch.no_grad():
        values.give_back()
    assert parameter.data_ptr() == address


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.complex64, torch.bool])
def test_every_dtype_can_be_taken(dtype: torch.dtype) -> None:
    parameter = nn.Parameter(torch.ones(3, dtype=dtype), requires_grad=False)
    values = WholeValues(parameter)
    assert parameter.dtype == dtype
    with torch.no_grad():
        values.give_back()
    assert (parameter.dtype, type(parameter), parameter.shape) == (dtype, nn.Parameter, (3,))
    assert isinstance(parameter, Tensor)
