"""Hooks of schedules in `optimizer.step()`.

torch calls an optimizer's pre-hook with the step's arguments, and the hook's return value replaces them. A closure runs
after the pre-hook, inside the step, so the wait for its gradients is at the closure's end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from xbench.errors import UsageError

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
PreHook = Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], Arguments | None]


def takes_hooks(optimizer: object) -> None:
    """Raise UsageError for an object that steps but takes no hooks, such as some wrappers around an optimizer."""
    if not hasattr(optimizer, "register_step_pre_hook"):
        raise UsageError(
            f"{type(optimizer).__name__} is no torch.optim.Optimizer and takes no step hooks, so nothing can wait for "
            "gradients in its step",
            hint='hand in the torch optimizer that it holds, or attach with wait="backward"',
        )


def before_each_step(optimizer: Optimizer, hook: PreHook) -> RemovableHandle:
    """Call `hook` before each step. Raises UsageError as `takes_hooks` does."""
    takes_hooks(optimizer)
    return optimizer.register_step_pre_hook(hook)


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """The closure of a step, or None. `args` begin with the optimizer itself."""
    closure: Callable[[], Any] | None = args[1] if len(args) > 1 else kwargs.get("closure")
    return closure


def with_wait(args: tuple[Any, ...], kwargs: dict[str, Any], wait: Callable[[], None]) -> Arguments:
    """The arguments of a step whose closure calls `wait()` after each of its backward passes."""
    closure = closure_of(args, kwargs)
    assert closure is not None

    def waited() -> Any:
        loss = closure()
        wait()
        return loss

    if len(args) > 1:
        return (args[0], waited, *args[2:]), kwargs
    return args, {**kwargs, "closure": waited}
