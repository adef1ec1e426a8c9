"""Measurement of both sides: a look at each, a launch that does not count, then pairs of launches in A-B-B-A order.

    looks of base and head → first launches → pair 0 → pair 1 → …
        in turns (`alternation`): base and head alive at once: base, head, head, base, …, a fraction of a second each
        one by one:               pair 0: base, then head; pair 1: head, then base

`Measuring` always holds all measurements so far, so a run that ends early keeps them.

The first launch of each side fills the caches (a fresh checkout has no compiled modules) and measures the length of
steps and launches. Everything is decided from it, before the first pair that counts. The number of pairs must not
depend on their results, or the p value would be invalid. So a check runs all of them.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from xbench.errors import RunError, SpecError, XbenchError
from xbench.record_files import now, results_folder
from xbench.records import Case, Check, Failure, LaunchPair, Measurement, Side, SideName, Suite
from xbench.regress import metrics
from xbench.regress.alternation import give_turns
from xbench.regress.checkout import Checkout, RunningJob
from xbench.regress.protocol import JobRequest, JobResult
from xbench.runs.run_folder import check_output
from xbench.runs.tune import format_minutes
from xbench.scratch import Scratch
from xbench.text import counted
from xbench.units import format_seconds
from xbench.version import __version__

TIMED_S = 1.2
"""Approximate timed steps of each mode in a launch [s]. More steps do not replace launches."""

ROUNDS = 2
"""Blocks of each mode in a launch, in mirrored order, so that a drift within the launch cancels."""

TURN_S = 0.1
"""Approximate length of a turn's timed steps [s]. In longer turns the machine changes more; shorter ones wait more."""

TURNS_S = 4.0
"""Approximate timed steps of each mode in a launch with turns [s]. More steps help here: they sample other moments."""

MIN_IN_TURN = 2
MIN_TURNS, MAX_TURNS = 2, 24
"""Limits of the turns of a block."""

MIN_STEPS, MAX_STEPS = 3, 60
FIRST_STEPS = 3
"""Timed steps of the launch that does not count."""

SPARE_PAIRS = 5
"""Pairs beyond the fewest that can reach the p value. Some launches may be disturbed, or deviate by chance."""

MORE_PAIRS = (16, 24, 32, 40)
"""Larger numbers of pairs to try if the noise floor of fewer is known to be too large."""

HUNG_S = 3600.0
"""Longer than any launch may take [s]. The launch's own time-out names the silent rank earlier."""

TIRED = 3
"""Failed launches of a check on one side after which the check is given up."""

Cases = Sequence[Case] | None
Layer = Literal["deterministic", "wall"]
BOTH: tuple[Layer, ...] = ("deterministic", "wall")


@dataclass
class RegressRequest:
    """Parsed and checked request. `suite` holds the checks to run; `folder` is that of its file.

    `base` is a git revision, `baseline` a stored one.
    """

    suite: Suite
    folder: Path
    layers: tuple[Layer, ...] = BOTH
    base: str | None = None
    baseline: Path | None = None
    pairs: int | None = None
    confirm: bool = True
    device: str = "auto"
    timeout_s: float = 120.0
    output: Path = field(default_factory=results_folder)
    command: str = "xbench regress"


def speaker(console: Console) -> Callable[[str], None]:
    """Return a function that prints a line of progress."""
    return partial(console.print, highlight=False, markup=False, soft_wrap=True)


# --- length of a launch, and number of pairs --------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """Shape of every launch of a check: blocks of each mode, turns in each, and timed steps in each turn.

    With `turns` None the launch has the machine to itself, and a block is `steps` steps without interruption.
    """

    rounds: int
    steps: int
    turns: int | None = None

    @property
    def timed_steps(self) -> int:
        """Timed steps of each mode in a launch."""
        return self.rounds * self.steps * (self.turns or 1)


def shape_of(steps_s: Mapping[str, float], cycle: int = 1, *, turns: bool = False) -> Shape:
    """Return the shape for the step times [s] of each mode on the slower side. `turns`: two launches take turns."""
    slowest_s = max(steps_s.values(), default=0.0)

    def steps_of(whole_s: float, fewest: int) -> int:
        wanted = whole_s / slowest_s if slowest_s > 0 else MAX_STEPS
        return math.ceil(min(MAX_STEPS, max(fewest, round(wanted))) / cycle) * cycle

    if not turns:
        return Shape(ROUNDS, steps_of(TIMED_S / ROUNDS, MIN_STEPS))
    steps = steps_of(TURN_S, MIN_IN_TURN)
    wanted = round(TURNS_S / ROUNDS / (steps * slowest_s)) if slowest_s > 0 else MAX_TURNS
    return Shape(ROUNDS, steps, min(MAX_TURNS, max(MIN_TURNS, wanted)))


FIRST = Shape(1, FIRST_STEPS)


def launch_s(first_s: float, shape: Shape, steps_s: Mapping[str, float]) -> float:
    """Predict the time of a launch of this shape [s], from that of the first launch [s] and its steps by mode."""
    return first_s + (shape.timed_steps - FIRST.timed_steps) * sum(steps_s.values())


@dataclass(frozen=True)
class PairPlan:
    """Number of pairs, and the reason for it. `needed` is the smallest number that can find anything."""

    pairs: int
    needed: int
    pair_s: float
    reason: str

    @property
    def too_few(self) -> bool:
        """True if every wall-clock case must be inconclusive."""
        return self.pairs < self.needed


def pair_plan_of(
    suite: Suite,
    pair_s: float,
    *,
    pairs: int | None,
    left_s: float,
    quiet_enough: Callable[[int], bool] | None = None,
) -> PairPlan:
    """Return the pairs of a check: the user's number, else as many as resolve the thresholds within the budget.

    `pair_s` is the time of one pair of launches of every check, and `left_s` the rest of the budget [s].
    `quiet_enough(n)` returns whether the noise floor of n pairs is small enough on this machine. If it is None, spare
    pairs are added.
    """
    needed = metrics.pairs_for(suite)
    asked = pairs if pairs is not None else suite.pairs
    if asked is not None:
        return PairPlan(asked, needed, pair_s, "as asked for")
    wished = needed + SPARE_PAIRS
    reason = f"{needed} can reach a p below {suite.alpha:g}, and {SPARE_PAIRS} are to spare"
    if quiet_enough is not None:
        sizes = [*range(needed, wished + 1), *(count for count in MORE_PAIRS if count > wished)]
        wished = next((count for count in sizes if quiet_enough(count)), sizes[-1])
        reason = "with so many this machine is quiet enough for the thresholds"
        if not quiet_enough(wished):
            reason = "the most that are tried: this machine is too noisy for the thresholds"
    room = max(1, int(left_s / pair_s)) if pair_s > 0 else wished
    if room < wished:
        return PairPlan(room, needed, pair_s, f"what the budget of {suite.budget_minutes:g} min has room for")
    return PairPlan(wished, needed, pair_s, reason)


def pair_messages(plan: PairPlan, cases: int) -> Sequence[str]:
    """Return messages for the user before the first pair."""
    said = [
        f"{plan.pairs} pairs of launches for {counted(cases, 'wall-clock case')} ({plan.reason}): "
        f"about {format_minutes(plan.pairs * plan.pair_s)}, and as long again if a slow-down has to be confirmed"
    ]
    if plan.too_few:
        said.append(
            f"fewer than {plan.needed} pairs cannot reach the p that a verdict needs, so these cases will be "
            f"inconclusive whatever is measured: --pairs {plan.needed} or more"
        )
    return said


# --- the measurement --------------------------------------------------------------------------------------------------


class Measuring:
    """Measurements of a check or a baseline. Raises SpecError if the suite has nothing in the requested layers."""

    def __init__(
        self, request: RegressRequest, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        check_output(request.output)
        self.request, self.suite = request, request.suite
        self.checks = [
            check for check in self.suite.checks if any(metrics.layer_of(check, one) for one in request.layers)
        ]
        if not self.checks:
            raise SpecError(
                f"--layer: no check of the suite has a {request.layers[0]} metric",
                hint="--layer both takes all of them",
            )
        self.failures: list[Failure] = []
        self.warnings: list[str] = []
        self.pairs: list[LaunchPair] = []
        self.confirmation: list[LaunchPair] = []
        self._say = say
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
            counts = "deterministic" in self.request.layers
            found, missing = metrics.deterministic_layer(check, answer) if counts else ([], [])
            measurements += found
            self.failures += metrics.failures(
                check, answer, tree.name, None, [] if check.name in uncounted else missing
            )
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
        layers, plan = self.request.layers, check.plan_from
        asked = set(metrics.layer_of(check, "deterministic")) if "deterministic" in layers else set()
        return JobRequest(
            kind="look",
            workload=check.workload,
            modes=metrics.modes_of(check, wall="wall" in layers),
            fabric=check.fabric,
            device=self.request.device,
            plan_from=str((self.request.folder / plan).resolve()) if plan is not None else None,
            workers=check.workers,
            planned=bool(asked & metrics.PLANNED.keys()),
            counted=bool(asked & metrics.COUNTED.keys()),
            held="peak_memory" in asked,
            timeout_s=self.request.timeout_s,
        )

    def nothing(self, error: XbenchError | None) -> XbenchError:
        """Return the reason why there is nothing to record."""
        if error is not None:
            return error
        reason = self.failures[0].reason if self.failures else "no launch gave an answer"
        return RunError(f"nothing could be measured: {reason}")

    def heading(self, error: XbenchError | None, warnings: Sequence[str], *, complete: bool) -> dict[str, Any]:
        """Return the fields that the records of a check and of a baseline share."""
        return {
            "created": now(),
            "command": self.request.command,
            "xbench": __version__,
            "complete": complete,
            "error": str(error) if error is not None else None,
            "warnings": list(dict.fromkeys([*warnings, *self.warnings])),
            "suite": self.suite,
            "pairs": self.pairs,
            "failures": self.failures,
        }

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
            if not metrics.layer_of(check, "wall") or (only is not None and check.name not in only):
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
            in_turns = self.suite.in_turns and all(self._looks[tree.name, check.name].takes_turns for tree in trees)
            shape = self._shapes[check.name] = shape_of(steps_s, cycle, turns=in_turns)
            once_s = (self._clock() - began_s) / len(trees)
            self._pair_s[check.name] = len(trees) * launch_s(once_s, shape, steps_s)
            label = next(answer.label for answer in answers if answer is not None)
            parts = f"{shape.turns} turns of " if shape.turns is not None else ""
            self._say(
                f"{check.name}: a launch times {shape.rounds} blocks of {parts}{shape.steps} steps of each mode "
                f"(steps of {', '.join(f'{name} {format_seconds(took)}' for name, took in steps_s.items())}, {label})"
            )

    def in_turns(self, check: str) -> bool:
        """True if the two launches of a pair of this check take turns. Known after its first launches."""
        return check in self._shapes and self._shapes[check].turns is not None

    def plan_pairs(self, quiet_enough: Callable[[int], bool] | None) -> PairPlan:
        """Return the number of pairs of a check (`pair_plan_of`), and print it."""
        left_s, pair_s = 60.0 * self.suite.budget_minutes - self.spent_s, self.takes_s(1)
        plan = pair_plan_of(self.suite, pair_s, pairs=self.request.pairs, left_s=left_s, quiet_enough=quiet_enough)
        cases = metrics.wall_clock([case for check in self.timeable for case in check.cases()])
        first, *more = pair_messages(plan, len(cases))
        self._say(first)
        for sentence in more:
            self.warnings.append(sentence)
            self._say(sentence)
        return plan

    def takes_s(self, pairs: int) -> float:
        """Return the approximate time of `pairs` pairs of launches of every check [s]."""
        return pairs * sum(self._pair_s.values())

    def checked_pairs(self) -> int:
        """Return the number of pairs that a check of this suite would have, without a message."""
        left_s = 60.0 * self.suite.budget_minutes
        return pair_plan_of(self.suite, self.takes_s(1), pairs=None, left_s=left_s).pairs

    def run_pairs(
        self, base: Checkout, head: Checkout, pairs: int, kept: Callable[[], None], cases: Cases = None
    ) -> None:
        """Run `pairs` pairs of launches, of the checks and modes of `cases` alone if given. Call `kept()` after each.

        They are stored in `pairs`, or in `confirmation` if cases are given.
        """
        made = self.pairs if cases is None else self.confirmation
        checks = [part for check in self.timeable if (part := _of(check, cases)) is not None]
        in_turns = tuple(check.name for check in checks if self.in_turns(check.name))
        since_s = self._clock()
        if cases is not None:
            self._failed.clear()  # what failed in other launches need not fail in those that confirm
        for number in range(pairs):
            first: SideName = "head" if number % 2 else "base"
            began_s = self._clock()
            left_s = (pairs - number) * (
                (began_s - since_s) / number if number else sum(self._pair_s[check.name] for check in checks)
            )
            again = "" if cases is None else "confirming "
            self._say(f"{again}pair {number + 1} of {pairs}; about {format_minutes(left_s)} left")
            found = self._both_sides(checks, (base, head) if first == "base" else (head, base), number)
            made.append(
                LaunchPair(
                    number=number,
                    first=first,
                    in_turns=in_turns,
                    base=found["base"],
                    head=found["head"],
                    started_s=began_s - self._began_s,
                    took_s=self._clock() - began_s,
                )
            )
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
                    found[tree.name] += metrics.timed(check, answer, shape.steps if shape.turns is not None else None)
        return found

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
                "modes": metrics.modes_of(check, wall=True),
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
        new = metrics.failures(check, answer, tree.name, pair, missing)
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
