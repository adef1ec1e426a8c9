"""Detection of the end of the outermost backward pass, from hooks on gradients.

Autograd calls the argument of `queue_callback` at the end of the pass that was running at that moment. Passes nest:
checkpointing with `use_reentrant=True` calls `backward` inside the backward pass. Gradients of the outer pass may still
be missing when a nested one ends. A nested pass runs inside a node of the outer one, which is autograd's current node
when the nested pass ends. A hook on that node runs in the outer pass and queues the callback there again. When no node
is current, the pass is the outermost.

A pass that raises never ends, and its queued callback is freed. A weak reference detects that, so the next gradient is
not assigned to the failed pass.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Variable

from xbench.errors import UsageError


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
        """Await the end of the running pass; called from a hook on a gradient."""

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
