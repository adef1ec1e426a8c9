"""Blocks of a model, which sharded modes wrap and activation checkpointing recomputes.

A block is a child, with parameters, of a `ModuleList` or a `Sequential`. Lists inside lists are searched; blocks inside
blocks are not.
"""

from __future__ import annotations

from torch import nn


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks by their path in the model, in order of registration; each module once."""
    found: dict[str, nn.Module] = {}
    seen: set[int] = set()

    def search(path: str, module: nn.Module) -> None:
        lists = type(module) is nn.Sequential or isinstance(module, nn.ModuleList)
        for name, child in module.named_children():
            if id(child) in seen:
                continue
            seen.add(id(child))
            at = f"{path}.{name}" if path else name
            callable_ = type(child) is not nn.Sequential and type(child).forward is not nn.Module.forward
            if lists and callable_ and next(child.parameters(), None) is not None:
                found[at] = child
            else:
                search(at, child)

    search("", model)
    return found
