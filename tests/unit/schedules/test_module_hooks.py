"""Hooks that copies and files of a module leave out."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from torch import nn

from xbench.schedules.module_hooks import uncopied


def users(_module: nn.Module, _inputs: Any) -> None:
    """A hook of the user."""


@pytest.mark.parametrize("taken", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_and_files_have_the_hooks_of_others_alone(taken: Any) -> None:
    model, calls = nn.Linear(1, 1), []
    first = model.register_forward_pre_hook(users)
    ours = [
        uncopied(model.register_forward_pre_hook(lambda *_: calls.append(1), with_kwargs=True)),
        uncopied(model.register_forward_hook(lambda *_: calls.append(2), always_call=True)),
        uncopied(model.register_state_dict_pre_hook(lambda *_: calls.append(3))),
    ]
    other = taken(model)
    assert list(other._forward_pre_hooks.values()) == [users]
    for table in (other._forward_pre_hooks_with_kwargs, other._forward_hooks, other._forward_hooks_always_called):
        assert not table
    other.state_dict()
    assert calls == []
    model.state_dict()
    copy.copy(model)(model.weight)
    assert calls == [3, 1, 2]
    first.remove()
    for handle in ours:
        handle.remove()
    assert not taken(model)._forward_pre_hooks
