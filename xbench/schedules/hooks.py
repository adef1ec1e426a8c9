"""Hooks of a training loop: the end of a backward pass, and the wait in `optimizer.step()`.

Autograd calls the argument of `queue_callback` at the end of the pass that was running at that moment. Passes nest:
checkpointing with `use_reentrant=True` calls `backward` inside the backward pass. Gradients of the outer pass may still
be missing when a nested one ends. A nested pass runs inside a node of the outer one, which is autograd's current node
when the nested pass ends. A hook on that node runs in the outer pass and queues the callback there again. When no node
is current, the pass is the outermost.

A pass that raises never ends, and its queued callback is freed. A weak reference detects that, so the next gradient is
not assigned to the failed pass.

torch calls an optimizer's pre-hook with the step's arguments, and the hook's return value replaces them. A closure runs
after the pre-hook, inside the step, so the wait for its gradients is at the closure's end.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle

from xbench.errors import UsageError

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class BackwardEnd:
    """One call of `ended()` at the end of the outermost backward pass around `await_end`."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._queued: weakref.ref[Callable[..., None]] | None = None

    @property
    def awaited(self) -> bool:
        """True from `await_end` until the end. Raises UsageError when that pass failed and can never end."""
        if self._queued is None:
            return False
        if self._queued() is None:
            raise UsageError(
                "the last backward pass raised an error before all of its gradients were sent, so ranks may be at "
                "different steps",
                hint="detach the schedule and attach it again, on all ranks",
            )
        return True

    def await_end(self) -> None:
        """Await the end of the running pass; called from a hook on a gradient.

        Raises UsageError under compiled autograd, which compiles hooks and has no end that calls back.
        """
        if torch.compiler.is_compiling():
            raise UsageError(
                "the backward pass is compiled (compiled autograd), and xbench's schedules cannot follow it",
                hint="leave compiled autograd out: torch.compile of the model alone is served",
            )

        def pass_ended() -> None:
            node = torch._C._current_autograd_node()
            if node is None:
                self._queued = None
                self._ended()
            else:
                self._await_node(node)

        self._queued = weakref.ref(pass_ended)
        Variable._execution_engine.queue_callback(pass_ended)

    def _await_node(self, node: Any) -> None:
        """Await the end again once this node of the outer pass is done, when the outer pass is the running one."""

        def node_done(*_: Any) -> None:
            hook.remove()
            self.await_end()

        self._queued = weakref.ref(node_done)
        hook = node.register_hook(node_done)

    def forget(self) -> None:
        """Stop awaiting the end."""
        self._queued = None


def has_step_hooks(optimizer: object) -> bool:
    """True for an optimizer that calls step hooks. Some wrappers are torch Optimizers whose constructor never ran."""
    return hasattr(optimizer, "register_step_pre_hook") and hasattr(optimizer, "_optimizer_step_pre_hooks")


def takes_hooks(optimizer: object) -> None:
    """Raise UsageError for an object that steps but takes no hooks, such as some wrappers around an optimizer."""
    if not has_step_hooks(optimizer):
        raise UsageError(
            f"{type(optimizer).__name__} takes no step hooks, so nothing can wait for gradients in its step",
            hint='hand in the torch optimizer that it holds, or attach with wait="backward"',
        )


def untraced(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, left out of what torch.compile traces, as around an optimizer's step."""
    found: Callable[..., Any] = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]
    return found


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """The closure of a step, or None. `args` begin with the optimizer itself."""
    closure: Callable[[], Any] | None = args[1] if len(args) > 1 else kwargs.get("closure")
    return closure


def with_wait(args: tuple[Any, ...], kwargs: dict[str, Any], wait: Callable[[], None]) -> Arguments:
    """The arguments of a step whose closure calls `wait()` after each of its backward passes."""
    closure = closure_of(args, kwargs)
    assert closure is not None

    def waited(*given: Any, **options: Any) -> Any:
        loss = closure(*given, **options)
        wait()
        return loss

    if len(args) > 1:
        return (args[0], waited, *args[2:]), kwargs
    return args, {**kwargs, "closure": waited}


def uncopied(handle: RemovableHandle) -> RemovableHandle:
    """Leave this hook of a module out of the module's copies and files; return its handle."""
    for reference in (handle.hooks_dict_ref, *handle.extra_dict_ref):
        table: Any = reference()
        others = vars(table).get("__reduce_ex__")
        if others is None:
            others = table.__reduce_ex__ = _Others(table)
        others.left_out.add(handle.id)
    return handle


class _Others:
    """`__reduce_ex__` of a table of hooks, without those in `left_out`."""

    def __init__(self, table: OrderedDict[int, Any]) -> None:
        self._table = table
        self.left_out: set[int] = set()

    def __call__(self, protocol: int) -> tuple[Any, ...]:
        kept = [(number, hook) for number, hook in self._table.items() if number not in self.left_out]
        return OrderedDict, (kept,)
