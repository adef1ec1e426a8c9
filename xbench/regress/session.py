"""Measurement of both sides: a look at each, a launch that does not count, then pairs of launches in A-B-B-A order.

    looks of base and head → first launches → pair 0 → pair 1 → …
        in turns (`alternation`): base and head alive at once: base, head, head, base, …, a fraction of a second each
        one by one:               pair 0: base, then head; pair 1: head, then base

`Measuring` always holds all measurements so far, so a run that ends early keeps them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from xbench.records import Case, Check, Failure, LaunchPair, Measurement, Side, SideName, Suite
from xbench.regress.alternation import give_turns
from xbench.regress.checkout import Checkout, RunningJob
from xbench.regress.metrics import (
    COUNTED,
    PLANNED,
    deterministic_layer,
    failures,
    layer_of,
    modes_of,
    timed,
    wall_clock,
)
from xbench.regress.pairs import FIRST_STEPS, PairPlan, Shape, launch_s, pair_messages, pair_plan_of, shape_of
from xbench.regress.protocol import JobRequest, JobResult
from xbench.runs.tune import format_minutes
from xbench.scratch import Scratch
from xbench.stats.regression import first_sides
from xbench.units import format_seconds

FIRST = Shape(1, FIRST_STEPS)
HUNG_S = 3600.0
"""Longer than any launch may take [s]. The launch's own time-out names the silent rank earlier."""

TIRED = 3
"""Failed launches of a check on one side after which the check is given up."""

Cases = Sequence[Case] | None


class Measuring:
    """Measurements of a check or a baseline."""

    def __init__(
        self,
        suite: Suite,
        plan_from: dict[str, str],
        say: Callable[[str], None],
        *,
        layers: Sequence[str],
        device: str = "auto",
        timeout_s: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.suite = suite
        self.checks = [check for check in suite.checks if any(layer_of(check, layer) for layer in layers)]
        self.failures: list[Failure] = []
        self.warnings: list[str] = []
        self.pairs: list[LaunchPair] = []
        self.confirmation: list[LaunchPair] = []
        self._plan_from = plan_from
        self._say = say
        self._layers = tuple(layers)
        self._device, self._timeout_s = device, timeout_s
        self._clock = clock
        self._began_s = clock()
        self._looks: dict[tuple[SideName, str], JobResult] = {}
        self._shapes: dict[str, Shape] = {}
        self._pair_s: dict[str, float] = {}
        self._failed: dict[tuple[SideName, str], int] = {}

    @property
    def spent_s(self) -> float:
        """Time since the beginning [s]."""
        return self._clock() - self._began_s

    @property
    def timeable(self) -> list[Check]:
        """Checks with something to time whose looks and first launches succeeded on every side."""
        return [check for check in self.checks if check.name in self._shapes]

    # --- looks ------------------------------------------------------------------------------------------------------

    def build(self, tree: Checkout, source: str, revision: str | None) -> Side | None:
        """Build a tree's workloads without counting. Return None if no check could be resolved."""
        for check in self.checks:
            self._say(f"building {check.name} ({check.workload}, {check.fabric}) in {tree.title}")
            order = self._look_order(check).model_copy(update={"counted": False})
            self._looks[tree.name, check.name] = tree.carry_out(order, HUNG_S)
        side = self._side(tree, source, revision, [])
        return side if side is not None else self.look(tree, source, revision)  # `look` stores the reason

    def look(
        self, tree: Checkout, source: str, revision: str | None, *, uncounted: Collection[str] = ()
    ) -> Side | None:
        """Return a tree's description and its deterministic measurements; None if no check could be resolved.

        Checks that were built before are counted as they were built, except those named in `uncounted`.
        """
        measurements: list[Measurement] = []
        for check in self.checks:
            answer = self._looked(tree, check, check.name not in uncounted)
            self._looks[tree.name, check.name] = answer
            self._warn(answer)
            found, missing = deterministic_layer(check, answer) if "deterministic" in self._layers else ([], [])
            measurements += found
            self.failures += failures(check, answer, tree.name, None, [] if check.name in uncounted else missing)
        return self._side(tree, source, revision, measurements)

    def _looked(self, tree: Checkout, check: Check, counted: bool) -> JobResult:
        order, built = self._look_order(check), self._looks.get((tree.name, check.name))
        if built is not None and (built.error is not None or not order.counted or not counted):
            return built
        self._say(f"looking at {check.name} ({check.workload}, {check.fabric}) in {tree.title}")
        if built is None:
            return tree.carry_out(order, HUNG_S)
        answer = tree.carry_out(order.model_copy(update={"resolved": built.resolved}), HUNG_S)
        told = {name: getattr(answer, name) for name in ("error", "hint", "label", "counted")}
        warnings = list(dict.fromkeys([*built.warnings, *answer.warnings]))
        return built.model_copy(update={**told, "failed": {**built.failed, **answer.failed}, "warnings": warnings})

    def _side(self, tree: Checkout, source: str, revision: str | None, measurements: list[Measurement]) -> Side | None:
        answers = {check.name: self._looks[tree.name, check.name] for check in self.checks}
        environments = [answer.environment for answer in answers.values() if answer.environment is not None]
        if not environments:
            return None
        return Side(
            source=source,
            revision=revision,
            environment=environments[0],
            checks=self.suite.checks,
            workloads={name: answer.workload for name, answer in answers.items() if answer.workload is not None},
            measurements=measurements,
        )

    def _look_order(self, check: Check) -> JobRequest:
        asked = set(layer_of(check, "deterministic")) if "deterministic" in self._layers else set()
        return JobRequest(
            kind="look",
            workload=check.workload,
            modes=modes_of(check, wall="wall" in self._layers),
            fabric=check.fabric,
            device=self._device,
            plan_from=self._plan_from.get(check.name),
            workers=check.workers,
            planned=bool(asked & PLANNED.keys()),
            counted=bool(asked & COUNTED.keys()),
            held="peak_memory" in asked,
            timeout_s=self._timeout_s,
        )

    def same_look(self, tree: Checkout, other: Checkout) -> None:
        """Copy the looks of `other` to `tree`, which is the same tree under another name."""
        for check in self.checks:
            self._looks[tree.name, check.name] = self._looks[other.name, check.name]

    # --- launches ---------------------------------------------------------------------------------------------------

    def first_launches(self, trees: Sequence[Checkout], only: Collection[str] | None = None) -> None:
        """Run one launch of each check on each side that does not count, and set the shape of those that do.

        `only` names the checks to time. None: all.
        """
        for check in self.checks:
            if not layer_of(check, "wall") or (only is not None and check.name not in only):
                continue
            began_s = self._clock()
            answers = []
            for tree in trees:
                self._say(f"first launch of {check.name} in {tree.title}, which does not count")
                answers.append(self._launch(check, tree, FIRST, seed=0, pair=None))
            steps_s = _slower([_steps_s(answer) for answer in answers if answer is not None])
            if None in answers or not steps_s:
                continue
            cycle = max((block.cycle for answer in answers if answer for block in answer.blocks), default=1)
            shape = self._shapes[check.name] = shape_of(steps_s, cycle, turns=self._able(check, trees))
            once_s = (self._clock() - began_s) / len(trees)
            self._pair_s[check.name] = len(trees) * launch_s(once_s, FIRST, shape, steps_s)
            label = next(answer.label for answer in answers if answer is not None)
            parts = f"{shape.turns} turns of " if shape.turns is not None else ""
            self._say(
                f"{check.name}: a launch times {shape.rounds} blocks of {parts}{shape.steps} steps of each mode "
                f"(steps of {', '.join(f'{name} {format_seconds(took)}' for name, took in steps_s.items())}, {label})"
            )

    def in_turns(self, check: str) -> bool:
        """True if the two launches of a pair of this check take turns. Known after its first launches."""
        return check in self._shapes and self._shapes[check].turns is not None

    def plan_pairs(
        self,
        pairs: int | None,
        budget_s: float,
        quiet_enough: Callable[[int], bool] | None = None,
    ) -> PairPlan:
        """Return the number of pairs (`pair_plan_of`), and print it."""
        left_s, pair_s = budget_s - self.spent_s, sum(self._pair_s.values())
        plan = pair_plan_of(self.suite, pair_s, pairs=pairs, left_s=left_s, quiet_enough=quiet_enough)
        cases = wall_clock([case for check in self.timeable for case in check.cases()])
        for sentence in pair_messages(plan, len(cases)):
            self._say(sentence)
        if plan.too_few:
            self.warnings.append(pair_messages(plan, len(cases))[-1])
        return plan

    def takes_s(self, pairs: int) -> float:
        """Return the approximate time of `pairs` pairs of launches of every check [s]."""
        return pairs * sum(self._pair_s.values())

    def checked_pairs(self, budget_s: float) -> int:
        """Return the number of pairs that a check of this suite would have, without a message."""
        return pair_plan_of(self.suite, sum(self._pair_s.values()), pairs=None, left_s=budget_s).pairs

    def run_pairs(
        self, base: Checkout, head: Checkout, pairs: int, kept: Callable[[], None], cases: Cases = None
    ) -> None:
        """Run `pairs` pairs of launches, of the checks and modes of `cases` alone if given. Call `kept()` after each.

        They are stored in `pairs`, or in `confirmation` if cases are given.
        """

        def one(number: int, checks: Sequence[Check]) -> LaunchPair:
            order = (base, head) if first_sides(number + 1)[number] == "base" else (head, base)
            found = self._both_sides(checks, order, number)
            in_turns = tuple(check.name for check in checks if self.in_turns(check.name))
            first = order[0].name
            return LaunchPair(number=number, first=first, in_turns=in_turns, base=found["base"], head=found["head"])

        self._series("pair", pairs, kept, cases, one)

    def _series(
        self,
        what: str,
        count: int,
        kept: Callable[[], None],
        cases: Cases,
        one: Callable[[int, Sequence[Check]], LaunchPair],
    ) -> None:
        made = self.pairs if cases is None else self.confirmation
        checks = [part for check in self.timeable if (part := _of(check, cases)) is not None]
        since_s = self._clock()
        if cases is not None:
            self._failed.clear()  # what failed in other launches need not fail in those that confirm
        for number in range(count):
            began_s = self._clock()
            left_s = (count - number) * (
                (began_s - since_s) / number if number else sum(self._pair_s[check.name] for check in checks)
            )
            again = "" if cases is None else "confirming "
            self._say(f"{again}{what} {number + 1} of {count}; about {format_minutes(left_s)} left")
            pair = one(number, checks)
            times = {"started_s": began_s - self._began_s, "took_s": self._clock() - began_s}
            made.append(pair.model_copy(update=times))
            kept()

    def _both_sides(
        self, checks: Sequence[Check], order: Sequence[Checkout], number: int
    ) -> dict[SideName, list[Measurement]]:
        """Run one launch of each check on each side, check by check, so that the two of a pair are adjacent."""
        found: dict[SideName, list[Measurement]] = {"base": [], "head": []}
        for check in checks:
            if any(self._failed.get((tree.name, check.name), 0) >= TIRED for tree in order):
                continue
            shape = self._shapes[check.name]
            if shape.turns is None:
                answers = {tree: self._launch(check, tree, shape, seed=number, pair=number)
                           for tree in order}  # fmt: skip
            else:
                answers = self._launch_in_turns(check, order, number)
            for tree, answer in answers.items():
                if answer is not None:
                    found[tree.name] += timed(check, answer, shape.steps if shape.turns is not None else None)
        return found

    def _able(self, check: Check, trees: Sequence[Checkout]) -> bool:
        """True if the two launches of a pair take turns: both trees support it, and the suite allows it."""
        able = all(self._looks[tree.name, check.name].takes_turns for tree in trees)
        return self.suite.in_turns and len(trees) > 1 and able

    def _launch_in_turns(
        self, check: Check, order: Sequence[Checkout], number: int
    ) -> dict[Checkout, JobResult | None]:
        """Run one launch of each side, both at once. Turn k has this order if k is even, else the reverse."""
        shape = self._shapes[check.name]
        with Scratch("xb-turns-") as at, ExitStack() as stack:
            folders = {tree: Path(at) / tree.name for tree in order}
            begun: dict[Checkout, RunningJob] = {}
            for tree, folder in folders.items():
                folder.mkdir()
                given = self._time_order(check, tree, shape, number).model_copy(update={"turn_folder": str(folder)})
                begun[tree] = stack.enter_context(tree.begin(given))
            alive = {folders[tree]: partial(getattr, job, "alive") for tree, job in begun.items()}
            give_turns(list(folders.values()), alive, HUNG_S)
            return {tree: self._took(check, tree, job.answer(HUNG_S), number) for tree, job in begun.items()}

    def _launch(self, check: Check, tree: Checkout, shape: Shape, *, seed: int, pair: int | None) -> JobResult | None:
        """Run one launch. Return None if it has no step of any mode, with the reasons among the failures."""
        if self._looks[tree.name, check.name].resolved is None:
            return None
        return self._took(check, tree, tree.carry_out(self._time_order(check, tree, shape, seed), HUNG_S), pair)

    def _time_order(self, check: Check, tree: Checkout, shape: Shape, seed: int) -> JobRequest:
        return self._look_order(check).model_copy(
            update={
                "kind": "time",
                "modes": modes_of(check, wall=True),
                "resolved": self._looks[tree.name, check.name].resolved,
                "rounds": shape.rounds,
                "steps": shape.steps,
                "turns": shape.turns or 1,
                "seed": seed,
            }
        )

    def _took(self, check: Check, tree: Checkout, answer: JobResult, pair: int | None) -> JobResult | None:
        """Return the result of a timed job; None if it failed or has no step, with the reasons among the failures."""
        self._warn(answer)
        missing = [mode for mode in check.modes if not any(block.mode == mode for block in answer.blocks)]
        new = failures(check, answer, tree.name, pair, missing)
        known = {(one.check, one.mode, one.side, one.reason) for one in self.failures}
        self.failures += [one for one in new if (one.check, one.mode, one.side, one.reason) not in known]
        if answer.blocks and answer.error is None:  # what ended early is no launch to compare
            return answer
        place = (tree.name, check.name)
        self._failed[place] = self._failed.get(place, 0) + 1
        return None

    def _warn(self, answer: JobResult) -> None:
        self.warnings += [sentence for sentence in dict.fromkeys(answer.warnings) if sentence not in self.warnings]


def _of(check: Check, cases: Cases) -> Check | None:
    """Return the check with those of its modes that are among the cases; None if there are none."""
    if cases is None:
        return check
    modes = tuple(mode for mode in check.modes if any((c.check, c.mode) == (check.name, mode) for c in cases))
    return check.model_copy(update={"modes": modes}) if modes else None


def _steps_s(answer: JobResult) -> dict[str, float]:
    """Return the median step of each mode [s]."""
    return {
        mode: statistics.median(s for block in answer.blocks if block.mode == mode for s in block.steps_s)
        for mode in dict.fromkeys(block.mode for block in answer.blocks)
    }


def _slower(sides: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return for each mode the step of the slower side [s]."""
    names = dict.fromkeys(name for side in sides for name in side)
    return {name: max(side[name] for side in sides if name in side) for name in names}
