"""Models that torch.compile has been at: what a hook still sees of them, and what their parameters are called.

A **region** is a module whose call is compiled: what `torch.compile(module)` returns, or a module after
`module.compile()`. Inside it there are no layers any more: forward is one graph, the hooks of the modules within are
traced into it or left out, and backward is one autograd node that returns all gradients of the region at its end. What
stays visible is the region's own call, and each parameter's accumulation, which autograd does outside the graph.

`torch.compile` puts `_orig_mod.` into the names of the parameters inside. Plans, profiles and reports have the plain
names, so that a plan made of the plain model fits the compiled one, and the other way round.

CUDA graphs (by hand, `make_graphed_callables`, `mode="reduce-overhead"`) replay a recorded step: no hook runs in it,
and no collective can start in the middle. `recorded_by` and `Recordings` find them, so that they are refused by name.

Nothing here imports torch before it is called: what is not loaded has compiled nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from xbench import characters

if TYPE_CHECKING:
    from torch import nn

WRAPPER = "_orig_mod"
_GRAPHED = "make_graphed_callables."
_CUDAGRAPHS = "triton.cudagraphs"


def plain_name(name: str) -> str:
    r"""The name of a module or parameter as records have it: 'layers.0.weight'.

    It is the name without torch.compile, and a control character in it is written out, as in every text of a record.
    """
    return characters.visible(".".join(part for part in name.split(".") if part != WRAPPER))


def is_region(module: nn.Module) -> bool:
    """Whether a call of this module is compiled."""
    return _is_wrapper(module) or getattr(module, "_compiled_call_impl", None) is not None


def regions(model: nn.Module) -> dict[str, nn.Module]:
    """The outermost compiled regions by their path in `model.named_modules()`; '' is the model itself."""
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        if is_region(module) and region_of(path, found) is None:
            found[path] = module
    return found


def region_of(path: str, found: dict[str, nn.Module]) -> str | None:
    """The path of the region that the module at `path` is, or is inside of; None outside all."""
    for region in found:
        if not region or path == region or path.startswith(region + "."):
            return region
    return None


def visible(model: nn.Module) -> Iterator[nn.Module]:
    """The modules whose calls a hook sees: those outside compiled regions."""
    found = regions(model)
    for path, module in model.named_modules():
        if region_of(path, found) is None:
            yield module


@contextmanager
def cut_by_ddp(model: nn.Module, under_ddp: bool) -> Iterator[None]:
    """Around DDP on a model with regions: they are compiled anew inside, and anew after it.

    DDP's gradients of a region would all be there at the region's end, as ours are. So torch cuts the graph at DDP's
    buckets (its DDPOptimizer), but only when a region is compiled under DDP: one that was compiled before stays whole.
    DDP without these cuts is not DDP as it comes, and the others run without them; so each has graphs of its own.
    """
    mine = under_ddp and bool(regions(model))
    if not mine:
        yield
        return
    import torch

    torch._dynamo.reset()
    try:
        yield
    finally:
        torch._dynamo.reset()


def compiled_inside(model: nn.Module, forward: Callable[[], object]) -> str | None:
    """The first layer that runs inside a compiled function which is no region, so that its call cannot be seen.

    None where there is none, or nothing is compiled. `forward` runs the model forward, and has run before: a hook that
    is there while a function is compiled becomes part of it.
    """
    if "torch._dynamo" not in sys.modules:
        return None
    import torch

    layers = [
        (plain_name(path), module)
        for path, module in model.named_modules()
        if region_of(path, regions(model)) is None and next(module.parameters(recurse=False), None) is not None
    ]

    def called() -> set[str]:
        names: set[str] = set()
        handles = [module.register_forward_pre_hook(lambda *_, name=name: names.add(name)) for name, module in layers]
        try:
            forward()
        finally:
            for handle in handles:
                handle.remove()
        return names

    seen = called()
    with torch.compiler.set_stance("force_eager"):
        there = called()
    return next((name for name, _ in layers if name in there - seen), None)


def recorded_by(model: nn.Module) -> str | None:
    """What puts CUDA graphs into this model's step, for an error; None where nothing is known to."""
    for module in model.modules():
        forward = vars(module).get("forward")
        if getattr(forward, "__qualname__", "").startswith(_GRAPHED):
            return "torch.cuda.make_graphed_callables"
        for compiled in (forward, getattr(module, "_compiled_call_impl", None), module):
            if _replays(compiled):
                return "torch.compile with CUDA graphs (mode='reduce-overhead' and 'max-autotune' use them)"
    return None


class Recordings:
    """Inside this context `seen` becomes true when a CUDA graph is recorded or replayed, whoever does it."""

    def __init__(self) -> None:
        self.seen = False
        self._kept: dict[str, Any] = {}

    def __enter__(self) -> Self:
        import torch

        self._graph = torch.cuda.CUDAGraph
        for name in ("capture_begin", "replay"):
            self._kept[name] = vars(self._graph).get(name)
            setattr(self._graph, name, self._noticed(getattr(self._graph, name)))
        return self

    def _noticed(self, method: Any) -> Any:
        def called(graph: Any, *arguments: Any, **options: Any) -> Any:
            self.seen = True
            return method(graph, *arguments, **options)

        return called

    def __exit__(self, *_: object) -> None:
        for name, method in self._kept.items():
            if method is None:
                delattr(self._graph, name)
            else:
                setattr(self._graph, name, method)


def _is_wrapper(module: Any) -> bool:
    frame = sys.modules.get("torch._dynamo.eval_frame")
    return frame is not None and isinstance(module, frame.OptimizedModule)


def _replays(compiled: Any) -> bool:
    """Whether what torch.compile made uses CUDA graphs, by the options that it was given."""
    options = getattr(compiled, "get_compiler_config", lambda: None)
    return callable(options) and bool((options() or {}).get(_CUDAGRAPHS))
