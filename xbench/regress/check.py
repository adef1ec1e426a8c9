"""`xbench regress check`: measure base and head, judge them, and measure suspected cases once more.

Against a revision both sides are launched here, in alternation. Against a stored baseline only head's counts, plans and
predictions are judged: times of another day would count any change of the machine as a difference of the code.

A record is written after every pair. A check that ends early leaves its measurements, marked incomplete.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Literal

from rich.console import Console

from xbench import environment
from xbench.errors import SpecError, XbenchError
from xbench.interrupts import interrupts_held
from xbench.record_files import RECORD
from xbench.records import Baseline, Check, Failure, NoiseFloor, Regression, Side
from xbench.regress import baseline, checkout
from xbench.regress.judge import floors_of, judge, suspected, worth_timing
from xbench.regress.metrics import METRICS, workload_change
from xbench.regress.session import Measuring, RegressRequest, speaker
from xbench.runs.run_folder import Kept, keep, measure_and_keep, new_run_folder
from xbench.stats.regression import MIN_PAIRS
from xbench.text import counted

BESIDE = "--base HEAD~1 measures that revision beside this tree"


def check(request: RegressRequest, console: Console) -> Kept[Regression]:
    """Measure, judge, confirm. Errors before a launch are raised; later ones are in the result."""
    checking = Checking(request, console)
    return checking.against_revision(request.base) if request.base is not None else checking.against_baseline()


class Checking:
    """One check in progress."""

    def __init__(self, request: RegressRequest, console: Console) -> None:
        self.request = request
        self.say = speaker(console)
        self.measuring = Measuring(request, self.say)
        self.against: Literal["revision", "baseline"] = "revision"
        self.base: Side | None = None
        self.head: Side | None = None
        self.floors: list[NoiseFloor] = []
        self.warnings = environment.noise_warnings() if request.base is not None and "wall" in request.layers else []

    # --- against a revision ------------------------------------------------------------------------------------------

    def against_revision(self, revision: str) -> Kept[Regression]:
        """Measure both sides now. Raises SpecError for a revision that does not exist."""
        repository = checkout.Repository.around(self.request.folder)
        named = repository.commit_of(revision)
        commit, ahead = repository.branch_point(named)
        tree, own = checkout.working_tree(self.request.folder)
        if ahead:
            self._warn(
                f"{revision} is {counted(ahead, 'commit')} ahead of where this tree branched off; "
                f"base is their merge base {checkout.short(commit)}, because what came later is no change of this tree"
            )
        title = revision if commit == named else f"merge base with {revision}"
        self.say(f"base is {checkout.short(commit)} ({title}), head is {tree.title}")
        with repository.checked_out(commit, self._warn) as root:
            title = f"base revision {checkout.short(commit)}"
            base = checkout.Checkout("base", root, root / repository.here, repository.root, title)
            for told in filter(None, (checkout.other_needs(root, repository.root), checkout.empty_submodules(root))):
                self._warn(told)
            return self._ended(lambda: self._both(base, tree, commit, own))

    def _both(self, base: checkout.Checkout, head: checkout.Checkout, commit: str, own: str | None) -> None:
        self.head = self.measuring.build(head, head.title, own)
        if self.head is None:
            return
        try:
            base.ask()
        except checkout.Incomparable as why:
            self.head = self.measuring.look(head, head.title, own)
            self.say(str(why))
            checks = self.request.suite.checks
            self.measuring.failures += [Failure(check=check.name, side="base", reason=str(why)) for check in checks]
            return
        source = f"revision {checkout.short(commit)}"
        self.base = self.measuring.build(base, source, commit)
        if self.base is None:
            self._explain(base)
            self.head = self.measuring.look(head, head.title, own)  # its failures count
            return
        names = [check.name for check in self.measuring.checks]
        changed = [name for name in names if workload_change(name, self.base, self.head) is not None]
        self.head = self.measuring.look(head, head.title, own, uncounted=changed)
        self.base = self.measuring.look(base, source, commit, uncounted=changed)
        self._explain(base)
        self.measuring.first_launches((base, head), self._worth_timing())
        if not self.measuring.timeable:
            return
        pairs = self._pairs()
        self.measuring.run_pairs(base, head, pairs, self._keep_so_far)
        self._confirm(base, head, pairs)

    def _confirm(self, base: checkout.Checkout, head: checkout.Checkout, pairs: int) -> None:
        """Launch suspected cases again, with as many fresh pairs."""
        if not self.request.confirm:
            return
        doubtful = suspected(judge(self._record(None, complete=False)))
        if not doubtful:
            return
        named = ", ".join(f"{case.check} {case.mode} {case.metric}" for case in doubtful)
        self.say(f"suspected, so measured again by fresh launches: {named}")
        self.measuring.run_pairs(base, head, pairs, self._keep_so_far, doubtful)

    def _explain(self, base: checkout.Checkout) -> None:
        """Put the file that git did not check out into the failures of base that come from it."""
        for at, failure in enumerate(self.measuring.failures):
            why = checkout.left_out(base, failure.reason) if failure.side == "base" else None
            if why is not None:
                self.measuring.failures[at] = failure.model_copy(update={"reason": f"{why} ({failure.reason})"})
                self.say(f"{failure.check}: {why}")

    # --- against a baseline ------------------------------------------------------------------------------------------

    def against_baseline(self) -> Kept[Regression]:
        """Count head now, and compare it with stored counts. Raises RecordError for a baseline that cannot be read."""
        self.against = "baseline"
        given, folder = self.request.baseline, baseline.folder_of(self.request.folder)
        if "deterministic" not in self.request.layers:
            raise SpecError("times are compared with a revision, and no --base was given", hint=BESIDE)
        if given is not None:  # its errors are raised before anything is launched
            baseline.read_baseline(given)
        elif not baseline.machines_with_counts(folder):
            raise SpecError(
                f"there is nothing to compare with: no --base, and no baseline under {str(folder)!r}",
                hint=f"{BESIDE}; xbench regress baseline stores counts",
            )
        tree, own = checkout.working_tree(self.request.folder)
        return self._ended(lambda: self._stored(tree, own))

    def _stored(self, head: checkout.Checkout, own: str | None) -> None:
        self.head = self.measuring.look(head, head.title, own)
        if self.head is None:
            return
        folder, given = baseline.folder_of(self.request.folder), self.request.baseline
        stored = (
            [(given, baseline.read_baseline(given))]
            if given is not None
            else baseline.stored_counts(folder, self.head.environment)
        )
        if not stored:
            self._warn(
                "nothing was compared: there is no baseline of this machine, "
                f"{baseline.machine_of(self.head.environment)}, but of "
                f"{', '.join(baseline.machines_with_counts(folder))}; xbench regress baseline makes one here, and "
                "check --base REV needs none"
            )
            return
        for path, one in stored:
            self.say(f"the baseline is {path}, made {one.created} of {one.side.source}")
        self.base = baseline.base_of([one for _, one in stored])
        self._say_changes()

    # --- both -------------------------------------------------------------------------------------------------------

    def _say_changes(self) -> None:
        """Report each change of a workload that the looks found, and each expected change that they did not find."""
        assert self.base is not None
        assert self.head is not None
        for check in self.measuring.checks:
            change = workload_change(check.name, self.base, self.head)
            if change is not None:
                self.say(f"{check.name}: {change.said}")
            elif check.expect_change is not None:
                self._warn(f"{check.name}: the workload is that of base, so expect_change can go")

    def _worth_timing(self) -> list[str]:
        """Return the checks that launches could decide, according to the looks."""
        self._say_changes()
        so_far = self._record(None, complete=False)
        names = worth_timing(so_far)
        if "wall" in self.request.layers and not names and any(case.fails for case in judge(so_far).cases):
            self.say("nothing is timed: the check fails already")
        return names

    def _pairs(self) -> int:
        """Return the number of pairs, and set the noise floors of a check with that many."""
        noise = self._noise()
        thresholds = self.request.suite.thresholds

        def quiet_enough(pairs: int) -> bool:
            floors = self._floors(noise, pairs)
            return bool(floors) and all(
                2 * one.floor <= thresholds.get(one.metric, METRICS[one.metric].threshold) for one in floors
            )

        pairs = self.measuring.plan_pairs(quiet_enough if noise is not None else None).pairs
        self.floors = self._floors(noise, pairs)
        return pairs

    def _noise(self) -> Baseline | None:
        """Return this machine's A/A pairs. Print a message if there is none, or if it knows none of these checks."""
        assert self.head is not None
        noise = baseline.noise_of(baseline.folder_of(self.request.folder), self.head.environment)
        if noise is None:
            self.say("the noise floor of this machine is not known: xbench regress baseline learns it")
        elif not self._floors(noise, MIN_PAIRS):
            self.say("the noise floor of these checks is not known: xbench regress baseline learns it")
            return None
        return noise

    def _floors(self, noise: Baseline | None, pairs: int) -> list[NoiseFloor]:
        """Return the floors for `pairs` pairs, of checks that are unchanged and launched in the same way."""
        if noise is None:
            return []
        known = {_measured(check) for check in self.request.suite.checks}
        same = {
            check.name
            for check in noise.side.checks
            if _measured(check) in known
            and all((check.name in pair.in_turns) == self.measuring.in_turns(check.name) for pair in noise.pairs)
        }
        return [one for one in floors_of(self.request.suite, noise.pairs, pairs) if one.check in same]

    def _warn(self, told: str) -> None:
        self.warnings.append(told)
        self.say(told)

    def _record(self, error: XbenchError | None, *, complete: bool) -> Regression:
        assert self.head is not None
        return Regression(
            **self.measuring.heading(error, self.warnings, complete=complete),
            against=self.against,
            base=self.base,
            head=self.head,
            layers=self.request.layers,
            confirm=self.request.confirm,
            confirmation=self.measuring.confirmation,
            floors=self.floors,
        )

    @cached_property
    def path(self) -> Path:
        """Path of the record, in a folder that is made for the first record."""
        return (new_run_folder(self.request.output, "regression") / RECORD).absolute()

    def _keep_so_far(self) -> None:
        with interrupts_held():
            keep(self._record(None, complete=False), self.path)

    def _ended(self, measure: Callable[[], None]) -> Kept[Regression]:
        def made(error: XbenchError | None) -> Regression:
            if self.head is None or isinstance(error, SpecError):
                raise self.measuring.nothing(error)
            return judge(self._record(error, complete=error is None))

        return measure_and_keep(measure, made, lambda _: self.path)


def _measured(check: Check) -> Check:
    """Return the check without the fields that do not affect its measurement."""
    return check.model_copy(update={"expect_change": None})
