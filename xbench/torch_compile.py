"""Compiled models: calls that hooks still see inside torch.compile, plain names of parameters, and the compiler.

A **region** is a module whose call is compiled: the result of `torch.compile(module)`, or a module after
`module.compile()`. Inside it there are no layers any more. Forward is one graph, and the hooks of the modules within
are traced into it or left out. Backward is one autograd node, which returns all gradients of the region at its end.
Hooks still see the region's own call, and each parameter's accumulation, which autograd does outside the graph.

`torch.compile` puts `_orig_mod.` into the names of the parameters inside. Plans, profiles and reports use the plain
names. A plan of the plain model therefore fits the compiled one, and the reverse.

CUDA graphs (by hand, `make_graphed_callables`, `mode="reduce-overhead"`) replay a recorded step. No hook runs in it,
and no collective can start in the middle. `recorded_by` and `Recordings` find them, so that they are refused by name.

Nothing here imports torch before it is called. If torch is not loaded, nothing is compiled.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from xbench import text

if TYPE_CHECKING:
    from torch import nn

WRAPPER = "_orig_mod"

COMPILING = "compiling"
"""Note of a rank in whose step torch.compile may run."""

COMPILING_S = 900.0
"""Silence that a rank with that note may keep [s], if the run's own limit is shorter. It can note nothing meanwhile."""

_GRAPHED = "make_graphed_callables."
_CUDAGRAPHS = "triton.cudagraphs"


def compiler_obstacle() -> str | None:
    """Return why torch.compile cannot make kernels here, as half a sentence, or None.

    Inductor makes C++ of the kernels of a CPU. On a GPU Triton, which `prepare` asks for, needs the compiler too.
    """
    named = os.environ.get("CXX")
    compilers = (named,) if named else ("g++", "clang++")
    if any(shutil.which(compiler) for compiler in compilers):
        return None
    return f"torch.compile needs a C++ compiler ({' or '.join(compilers)}), and none is installed"


def compilations() -> int:
    """Return how many pieces of code torch.compile has compiled in this process so far."""
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["frames"]["total"]) if utils is not None else 0


def failed_to_compile(error: BaseException | None) -> bool:
    """True for an error of torch.compile itself, as of its backend, unless memory has run out in it."""
    raised = sys.modules.get("torch._dynamo.exc")
    if raised is None or not isinstance(error, raised.TorchDynamoException):
        return False
    return not any(words in str(error) for words in ("out of memory", "can't allocate memory"))


@contextmanager
def as_eager(compiled: bool) -> Iterator[None]:
    """Context in which compiled code draws eager's random numbers, and rounds as eager does between operations."""
    if not compiled:
        yield
        return
    import torch._inductor.config as inductor

    with inductor.patch(fallback_random=True, emulate_precision_casts=True):
        yield


def plain_name(name: str) -> str:
    r"""Return the name of a module or parameter as records have it: 'layers.0.weight'.

    It lacks torch.compile's prefix. Control characters in it are escaped, as in every text of a record.
    """
    return text.visible(".".join(part for part in name.split(".") if part != WRAPPER))


def is_region(module: nn.Module) -> bool:
    """True if a call of this module is compiled."""
    frame = sys.modules.get("torch._dynamo.eval_frame")
    wrapped = frame is not None and isinstance(module, frame.OptimizedModule)
    return wrapped or getattr(module, "_compiled_call_impl", None) is not None


def regions(model: nn.Module) -> dict[str, nn.Module]:
    """Return the outermost compiled regions by their path in `model.named_modules()`; '' is the model itself."""
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        if is_region(module) and region_of(path, found) is None:
            found[path] = module
    return found


def region_of(path: str, found: dict[str, nn.Module]) -> str | None:
    """Return the path of the region that contains the module at `path`, or is it. None outside all regions."""
    return next((one for one in found if not one or path == one or path.startswith(one + ".")), None)


def outside_regions(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules whose calls a hook sees: those outside compiled regions."""
    found = regions(model)
    for path, module in model.named_modules():
        if region_of(path, found) is None:
            yield module


@contextmanager
def cut_by_ddp(model: nn.Module, under_ddp: bool) -> Iterator[None]:
    """Context for DDP on a model with regions: regions are compiled anew inside it, and anew after it.

    Under DDP a region would return all gradients at its end, as under our schedules. torch therefore cuts the graph at
    DDP's buckets (its DDPOptimizer), but only if the region is compiled under DDP. A region compiled earlier stays
    whole. Unmodified DDP includes these cuts, and the other schedules run without them. So each has graphs of its own.
    """
    if not under_ddp or not regions(model):
        yield
        return
    import torch

    torch._dynamo.reset()
    try:
        yield
    finally:
        torch._dynamo.reset()


def compiled_inside(model: nn.Module, forward: Callable[[], object]) -> str | None:
    """Return the first layer inside a compiled function that is no region. Hooks do not see its call.

    Return None if there is none, or if this process has compiled nothing. `forward` runs the model forward, and must
    have run before. A hook that exists while a function is compiled becomes part of it. Where something was compiled,
    `forward` is assumed to call the same layers each time.
    """
    if compilations() == 0:
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
    """Return the source of CUDA graphs in this model's step, for an error. None if no known source is found."""
    for module in model.modules():
        forward = vars(module).get("forward")
        if getattr(forward, "__qualname__", "").startswith(_GRAPHED):
            return "torch.cuda.make_graphed_callables"
        for compiled in (forward, getattr(module, "_compiled_call_impl", None), module):
            options = getattr(compiled, "get_compiler_config", lambda: None)
            if callable(options) and (options() or {}).get(_CUDAGRAPHS):
                return "torch.compile with CUDA graphs (mode='reduce-overhead' and 'max-autotune' use them)"
    return None


class Recordings:
    """Context in which `seen` becomes true when any code records or replays a CUDA graph."""

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
