"""Profile of a training step on one rank: raw times of instrumented steps (`profilers.layers`) beside bare ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from xbench.profilers.clock import Clock, Mark
from xbench.profilers.layers import LayerProfiler, LayerTimes, ProfiledLayer, ProfiledTensor, StepMarks, bare_step
from xbench.workloads.training_step import TrainingStep

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
