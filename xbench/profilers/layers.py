"""Times of one training step, layer by layer: forward, backward, and the completion of each gradient.

A **layer** is a module that directly owns at least one trainable parameter. A parameter that several modules share
belongs to the one that registered it first, in the order of `model.named_parameters()`, whose names are used. A module
whose trainable parameters all belong to others counts as one more call of the owner of its first. A region that
torch.compile made one graph of (`xbench.torch_compile`) is one layer.

Marks divide the step, so no time is counted twice or lost:

- **forward_s** of a layer lasts from the start of its forward to the start of the next layer's, summed over its calls.
  So activations, pooling and the loss belong to the layer before them. Work before the first layer belongs to the
  first, and is the step's **input_s** too. A layer whose weight is read without a call (the output projection inside
  `nn.MultiheadAttention`) has 0 here.
- **ready_s** of a tensor lasts from the start of backward until its gradient has been accumulated. Autograd has one
  accumulation node per parameter, which runs after every use has contributed.
- **backward_s** of a layer lasts from the previous layer's last gradient to its own last, in gradient-ready order. It
  follows from ready_s, so `summary` computes it.

A layer without a gradient in a step is not part of that step. Forward calls during backward (activation checkpointing)
belong to backward. Of several micro-steps these times are the last one's; the others take **accumulate_s**. **load_s**
is the wait for a loader's batches and their copy; on a GPU, the time for which the device waits.

No mark waits for the device: it is a number or a recorded event, read after the last step. `profile_step` measures what
hooks cost, by alternating instrumented and bare steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from xbench.errors import WorkloadError
from xbench.profilers.clock import Clock, Mark
from xbench.torch_compile import WRAPPER, plain_name, region_of, regions
from xbench.workloads.training_step import TrainingStep

ROOT_NAME = "(model)"
"""Layer name of the model itself, where it owns parameters directly."""

COMPILED = " (compiled)"
"""Suffix of the kind of a layer that is one compiled region."""


class ProfiledTensor(NamedTuple):
    """One trainable parameter."""

    name: str
    elements: int
    nbytes: int
    dtype: str


class ProfiledLayer(NamedTuple):
    """One module with trainable parameters of its own; `tensors` are indices into `LayerProfiler.tensors`."""

    name: str
    kind: str
    tensors: tuple[int, ...]


class StepMarks(NamedTuple):
    """The marks of one instrumented step, and the range of the hooks' trace that belongs to it.

    `forward` is the begin of the last micro-step. `loads` are begin and end of each wait for a batch.
    """

    begin: Mark
    cleared: Mark
    forward: Mark
    backward: Mark
    update: Mark
    end: Mark
    trace_begin: int
    trace_backward: int
    trace_end: int
    loads: tuple[tuple[Mark, Mark], ...] = ()

    @property
    def loaded(self) -> Mark:
        """Mark at which the last micro-step had its batch."""
        return self.loads[-1][1] if self.loads else self.forward


class LayerTimes(NamedTuple):
    """Times of one step: forward seconds per layer, and ready seconds per tensor (None: no gradient).

    `input_s`: from the start of forward, with a batch at hand, to the call of the first layer. It is part of the first
    layer's forward.
    """

    forward_s: list[float]
    ready_s: list[float | None]
    input_s: float


class LayerProfiler:
    """Hooks on a model that mark the start of every layer's forward and the completion of every gradient.

    It is a context manager: the hooks exist only inside it. It may be entered again. Raises WorkloadError for a model
    without trainable parameters. With `forward=False` it marks gradients alone, which delays the host less.
    """

    def __init__(self, model: nn.Module, clock: Clock, *, forward: bool = True) -> None:
        self.layers: list[ProfiledLayer] = []
        self.tensors: list[ProfiledTensor] = []
        self.frozen: list[str] = []
        self._clock = clock
        self._marks_forward = forward
        self._called: list[tuple[nn.Module, int]] = []
        self._parameters: list[nn.Parameter] = []
        self._handles: list[RemovableHandle | _CompiledCall] = []
        # Code and mark, alternating: a layer's index for its forward, layers + tensor's index for a gradient.
        self._trace: list[Any] = []
        self._find_layers(model)
        if not self.layers:
            raise WorkloadError(
                "the model has no trainable parameter", hint="set requires_grad on what it should train"
            )

    def _find_layers(self, model: nn.Module) -> None:
        owner: dict[int, int | None] = {}  # id(parameter) → layer; None: frozen
        compiled = regions(model)
        for prefix, module in model.named_modules():
            region = region_of(prefix, compiled)
            if region is not None and region != prefix:
                continue  # part of an earlier layer
            own: list[int] = []
            borrowed: list[int] = []
            for name, parameter in module.named_parameters(recurse=region is not None):
                full_name = plain_name(f"{prefix}.{name}" if prefix else name)
                if id(parameter) in owner:
                    first = owner[id(parameter)]
                    if first is not None:
                        borrowed.append(first)
                elif not parameter.requires_grad:
                    owner[id(parameter)] = None
                    self.frozen.append(full_name)
                else:
                    owner[id(parameter)] = len(self.layers)
                    own.append(len(self.tensors))
                    nbytes = parameter.numel() * parameter.element_size()
                    dtype = str(parameter.dtype).removeprefix("torch.")
                    self.tensors.append(ProfiledTensor(full_name, parameter.numel(), nbytes, dtype))
                    self._parameters.append(parameter)
            if own:
                self._called.append((module, len(self.layers)))
                kind = type(getattr(module, WRAPPER, module)).__name__ + (COMPILED if region is not None else "")
                self.layers.append(ProfiledLayer(plain_name(prefix) or ROOT_NAME, kind, tuple(own)))
            elif borrowed:
                self._called.append((module, borrowed[0]))

    def __enter__(self) -> Self:
        append, mark = self._trace.append, self._clock.mark
        for module, layer in self._called if self._marks_forward else ():
            if module._compiled_call_impl is not None:  # a hook would be inside the compiled graph
                self._handles.append(_CompiledCall(module, _forward_hook(layer, append, mark)))
                continue
            # In front of other pre-hooks: their time belongs to this layer.
            self._handles.append(module.register_forward_pre_hook(_forward_hook(layer, append, mark), prepend=True))
        for code, parameter in enumerate(self._parameters, start=len(self.layers)):
            handle = parameter.register_post_accumulate_grad_hook(_ready_hook(code, append, mark))  # type: ignore[no-untyped-call]
            self._handles.append(handle)
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def run_step(self, workload: TrainingStep) -> StepMarks:
        """One instrumented training step: the gradients cleared, micro-steps, forward and loss, backward, optimizer."""
        trace, mark = self._trace, self._clock.mark
        loads: list[tuple[Mark, Mark]] = []

        def load() -> None:
            if workload.is_fed:
                since = mark()
                workload.load()
                loads.append((since, mark()))

        begin = mark()
        workload.clear()
        cleared = forward = mark()
        if workload.micro_steps > 1:
            workload.accumulate(load=load)
            forward = mark()
        load()
        trace_begin = len(trace)
        loss = workload.forward_loss()
        backward = mark()
        trace_backward = len(trace)
        workload.backward(loss)
        update = mark()
        workload.update()
        end = mark()
        ranges = trace_begin, trace_backward, len(trace)
        return StepMarks(begin, cleared, forward, backward, update, end, *ranges, tuple(loads))

    @property
    def marks(self) -> int:
        """Number of marks of all hooks so far, those of earlier micro-steps too."""
        return len(self._trace) // 2

    def layer_times(self, step: StepMarks) -> LayerTimes:
        """The times of `step` from the hooks. Valid only after the clock's `flush()`."""
        elapsed_s = self._clock.elapsed_s
        codes = self._trace[step.trace_begin : step.trace_end : 2]
        marks = self._trace[step.trace_begin + 1 : step.trace_end : 2]
        forward_entries = (step.trace_backward - step.trace_begin) // 2
        layers = len(self.layers)

        ready_s: list[float | None] = [None] * len(self.tensors)
        for code, mark in zip(codes[forward_entries:], marks[forward_entries:], strict=True):
            if code >= layers:
                ready_s[code - layers] = elapsed_s(step.backward, mark)
        live = [any(ready_s[tensor] is not None for tensor in layer.tensors) for layer in self.layers]

        forward_s = [0.0] * layers
        current: int | None = None
        since = step.loaded
        for code, mark in zip(codes[:forward_entries], marks[:forward_entries], strict=True):
            if not live[code]:
                continue
            if current is not None:
                forward_s[current] += elapsed_s(since, mark)
                since = mark
            current = code
        if current is not None:
            forward_s[current] += elapsed_s(since, step.backward)
        input_s = elapsed_s(step.loaded, marks[0]) if forward_entries else 0.0
        return LayerTimes(forward_s, ready_s, input_s)


class _CompiledCall:
    """A call of `hook` before each call of a compiled module, outside the compiled graph."""

    def __init__(self, module: nn.Module, hook: Callable[..., None]) -> None:
        self._module = module
        self._inner = inner = module._compiled_call_impl
        assert inner is not None

        def call(*arguments: Any, **options: Any) -> Any:
            hook(module, arguments)
            return inner(*arguments, **options)

        module._compiled_call_impl = call

    def remove(self) -> None:
        """Restore the module's original call."""
        self._module._compiled_call_impl = self._inner


def _forward_hook(layer: int, append: Callable[[Any], None], mark: Callable[[], Mark]) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: Any) -> None:
        append(layer)
        append(mark())

    return hook


def _ready_hook(code: int, append: Callable[[Any], None], mark: Callable[[], Mark]) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        if parameter.grad is None:  # a custom Function returned None for it
            return
        append(code)
        append(mark())

    hook.only_observes = True  # type: ignore[attr-defined]  # sharded modes, which do not call it, need not refuse it
    return hook


def bare_step(workload: TrainingStep, before_update: Callable[[], object] = lambda: None) -> None:
    """One uninstrumented training step, with `before_update` called between backward and the optimizer."""
    workload.clear()
    workload.accumulate()
    workload.load()
    workload.backward(workload.forward_loss())
    before_update()
    workload.update()


AROUND = 8
"""Marks of a pair of steps beside those of hooks: six around the parts of the instrumented one, two around the bare."""

SERIES = ("input_s", "forward_s", "backward_s", "optimizer_s", "step_s", "uninstrumented_step_s")
"""Times of every profiled step."""


@dataclass
class StepProfile:
    """Raw times [s] of one rank, step by step, warm-up included. Series have one entry per step, in order of time.

    `step_s = load_s + accumulate_s + forward_s + backward_s + optimizer_s`; forward_s includes input_s, optimizer_s
    `zero_grad`. `accumulate_s` is of the micro-steps before the last, and empty where a step has one. `load_s` is empty
    without a loader. Entry i of
    `uninstrumented_step_s` is the bare step next to instrumented step i: before it when i is odd, else after it.
    """

    layers: list[ProfiledLayer]
    tensors: list[ProfiledTensor]
    frozen: list[str]
    warmup: int
    micro_steps: int = 1
    updates_together: bool = False
    loads_ahead: bool = False
    load_s: list[float] = field(default_factory=list)
    accumulate_s: list[float] = field(default_factory=list)
    input_s: list[float] = field(default_factory=list)
    forward_s: list[float] = field(default_factory=list)
    backward_s: list[float] = field(default_factory=list)
    optimizer_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    uninstrumented_step_s: list[float] = field(default_factory=list)
    layer_times: list[LayerTimes] = field(default_factory=list)

    def raw(self) -> dict[str, Any]:
        """All data in JSON types, for `summary.summarise`; times are rounded to nanoseconds."""
        return {
            "warmup": self.warmup,
            "micro_steps": self.micro_steps,
            "updates_together": self.updates_together,
            "loads_ahead": self.loads_ahead,
            "frozen": list(self.frozen),
            "steps": {
                name: [round(value, 9) for value in getattr(self, name)]
                for name in (*(name for name in ("load_s", "accumulate_s") if getattr(self, name)), *SERIES)
            },
            "layers": [
                {
                    "name": layer.name,
                    "kind": layer.kind,
                    "forward_s": [round(times.forward_s[index], 9) for times in self.layer_times],
                    "tensors": [self._raw_tensor(tensor) for tensor in layer.tensors],
                }
                for index, layer in enumerate(self.layers)
            ],
        }

    def _raw_tensor(self, index: int) -> dict[str, Any]:
        name, elements, nbytes, dtype = self.tensors[index]
        ready_s = [times.ready_s[index] for times in self.layer_times]
        rounded_s = [None if value is None else round(value, 9) for value in ready_s]
        return {"name": name, "elements": elements, "bytes": nbytes, "dtype": dtype, "ready_s": rounded_s}


def profile_step(
    workload: TrainingStep,
    clock: Clock,
    *,
    steps: int,
    warmup: int = 2,
    note: Callable[[str], object] = lambda _: None,
) -> StepProfile:
    """Time `warmup + steps` instrumented steps and as many bare ones, in the order A B B A A B B A ….

    Each instrumented step has a bare neighbour. A change in the machine's speed shifts neighbouring pairs in
    alternating directions, so it cancels in their median. Hooks are added and removed between the steps, and the clock
    is read only after the last. `note` is called before each pair with a text ("profile step 3 of 18").

    The model is really trained: save and restore its state around this call where that matters. Raises ValueError for
    fewer than one step, WorkloadError for a model without trainable parameters.
    """
    if steps < 1 or warmup < 0:
        raise ValueError(f"{steps} steps after {warmup} of warm-up cannot be profiled")
    profiler = LayerProfiler(workload.model, clock)
    instrumented: list[StepMarks] = []
    bare: list[tuple[Mark, Mark]] = []
    for step_number in range(2 * (warmup + steps)):
        pair, is_second = divmod(step_number, 2)
        if not is_second:
            note(f"profile step {pair + 1} of {warmup + steps}")
        if is_second == pair % 2:
            with profiler:
                instrumented.append(profiler.run_step(workload))
            if pair == 0:
                loads = 2 * len(instrumented[0].loads)
                clock.reserve((warmup + steps) * (profiler.marks + AROUND + loads))
        else:
            begin = clock.mark()
            bare_step(workload)
            bare.append((begin, clock.mark()))
    clock.flush()

    found = profiler.layers, profiler.tensors, profiler.frozen
    profile = StepProfile(*found, warmup, workload.micro_steps, workload.updates_together, workload.loads_ahead)
    for step in instrumented:
        loads_s = [clock.elapsed_s(since, until) for since, until in step.loads]
        if loads_s and not workload.loads_ahead:  # else the batch is held
            profile.load_s.append(sum(loads_s))
        if workload.micro_steps > 1:
            profile.accumulate_s.append(clock.elapsed_s(step.cleared, step.forward) - sum(loads_s[:-1]))
        profile.forward_s.append(clock.elapsed_s(step.forward, step.backward) - sum(loads_s[-1:]))
        profile.backward_s.append(clock.elapsed_s(step.backward, step.update))
        zero_grad_s = clock.elapsed_s(step.begin, step.cleared)
        profile.optimizer_s.append(zero_grad_s + clock.elapsed_s(step.update, step.end))
        profile.step_s.append(clock.elapsed_s(step.begin, step.end))
        profile.layer_times.append(profiler.layer_times(step))
        profile.input_s.append(profile.layer_times[-1].input_s)
    profile.uninstrumented_step_s.extend(clock.elapsed_s(begin, end) for begin, end in bare)
    clock.reset()
    return profile
