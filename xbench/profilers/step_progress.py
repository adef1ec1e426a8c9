"""Progress of a computation within its training steps, from the marks of layers and gradients."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
import time
from collections.abc import Iterable
from typing import Any

from xbench.profilers.layers import StepWorkload, bare_step
from xbench.torch_compile import visible


class Progress:
    """Marks in a training step, and the progress of the computation at any time, in undisturbed seconds.

    `run_step` runs a step and marks it. After `learn`, `at` converts a time into progress since the first step.
    """

    def __init__(self, workload: StepWorkload) -> None:
        self._workload = workload
        self._marks: list[float] = []
        self._starts: list[int] = []
        self._handles: list[Any] = []
        self._template: list[float] = []

    def __enter__(self) -> Progress:
        marks, now = self._marks, time.perf_counter
        for module in visible(self._workload.model):
            if next(module.parameters(recurse=False), None) is not None:
                self._handles.append(module.register_forward_pre_hook(lambda *_: marks.append(now())))
        for parameter in self._workload.model.parameters():
            if parameter.requires_grad:
                hook = parameter.register_post_accumulate_grad_hook(lambda _: marks.append(now()))  # type: ignore[no-untyped-call]
                self._handles.append(hook)
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def run_step(self) -> None:
        """One training step without communication."""
        self._starts.append(len(self._marks))
        self._marks.append(time.perf_counter())
        bare_step(self._workload)

    def learn(self, warmup: int = 1) -> None:
        """Take the earlier steps, except the first `warmup`, as undisturbed, and clear the marks."""
        self._starts.append(len(self._marks))
        self._marks.append(time.perf_counter())
        steps = [[*self._marks[a:b], self._marks[b]] for a, b in itertools.pairwise(self._starts)][warmup:]
        if len({len(step) for step in steps}) > 1:  # a graph that changes from step to step: only whole steps compare
            steps = [[step[0], step[-1]] for step in steps]
            self.__exit__()
        columns = zip(*([mark - step[0] for mark in step] for step in steps), strict=True)
        self._template = list(itertools.accumulate((statistics.median(column) for column in columns), max))
        self._marks.clear()
        self._starts.clear()

    def at(self, when_s: float) -> float:
        """Undisturbed seconds of computation done by `when_s` since `learn`; linear between marks."""
        per_step = len(self._template) - 1
        index = bisect.bisect_right(self._marks, when_s) - 1
        if index < 0:
            return 0.0
        step, place = divmod(index, per_step)
        passed, following = self._marks[index], self._marks[min(index + 1, len(self._marks) - 1)]
        within = (when_s - passed) / (following - passed) if following > passed else 0.0
        here, there = self._template[place], self._template[place + 1]
        return step * self._template[-1] + here + min(1.0, within) * (there - here)

    def drift(self, again_s: Iterable[float]) -> float:
        """Mean drift of a step's time from then to now: √(now / then), of medians. Never 0.

        `again_s`: steps [s] that ran after the measurement. Division by the drift removes changes of the machine's own
        speed.
        """
        return math.sqrt(statistics.median(again_s) / self._template[-1])

    def end(self) -> None:
        """Add a last mark, so that progress in the last step is defined."""
        self._marks.append(time.perf_counter())
