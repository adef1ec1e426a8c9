"""`xbench compare`, `profile` and `tune`: resolve the request, launch the ranks as a policy decides, build the record.

RunConfig → prepare → RunSpec → fabric → launches → Collector → record.json
"""

from __future__ import annotations

import itertools
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from xbench.config import RunConfig
from xbench.errors import XbenchError
from xbench.rank.journal import Journals, Take, to_all
from xbench.rank.program import JobPlan, Program
from xbench.records import Comparison, Profile
from xbench.runs.build_records import comparison_record, profile_record
from xbench.runs.event_collector import Collector
from xbench.runs.external_launch import our_rank, report_refusal, run_inside
from xbench.runs.fabric_run import FabricRun
from xbench.runs.frames import RunFrame
from xbench.runs.launch_policy import FixedLaunches, LaunchPolicy, LaunchSpec, OomTracker
from xbench.runs.prepare import prepare
from xbench.runs.progress import Progress
from xbench.runs.run_folder import check_output, keep, new_run_folder
from xbench.spec import RunSpec
from xbench.workloads.probe import Preflight

WORKER = "xbench.rank.main"


@dataclass(frozen=True)
class Result:
    """A record, its path, and the error that ended the run early, if any."""

    record: Profile | Comparison
    path: Path
    error: XbenchError | None
    speaks: bool = True
    """False on all ranks but the first if another launcher started xbench itself. They print and save nothing."""
    plans: tuple[JobPlan, ...] = ()
    """Buckets that the launches ran, by job, each with every trainable parameter. Empty if ranks were given."""


def execute(config: RunConfig, console: Console, policy: LaunchPolicy | None = None) -> Result:
    """Run, and return the result. Errors before any measurement are raised; later ones are in the result.

    `policy` decides on each launch; None: the effort does.
    """
    starts_ranks = config.fabric.name not in ("auto", "cluster")  # surrounding ranks, if any, then take no part
    speaks = starts_ranks or our_rank() == 0
    if not speaks:
        console = Console(quiet=True)
    if speaks:
        check_output(config.output)
    try:
        run, found, notes = prepare(config)
    except XbenchError as refused:
        if not speaks:
            report_refusal(refused)
        raise
    if run.fabric.name == "cluster":
        if run.kind == "comparison" and run.effort.launches > 1:
            notes.append(f"1 launch in place of {run.effort.launches}: another program started the ranks")
        run = run.model_copy(update={"effort": run.effort.model_copy(update={"launches": 1})})
    policy = policy or FixedLaunches(run)
    notes += policy.check(run)
    progress = Progress(console, launches=policy.launches, run=run)
    for item in found.workloads[: 1 if len(set(run.workloads)) == 1 else None]:
        told = item.record
        progress.say(f"{told.title}, each rank: {told.training}; {run.device}")
    for note in notes:
        progress.say(note)
    name = "-".join(dict.fromkeys(_safe(spec.title) for spec in run.workloads))
    folder = new_run_folder(config.output, f"{config.title or config.kind}-{name}") if speaks else config.output
    running = ModeRun(run, found, progress, folder, policy, saves=speaks)
    kept = running.execute()
    return Result(*kept, speaks, tuple(running.plans))


class ModeRun(FabricRun[RunFrame, Profile | Comparison]):
    """A run that times modes, or profiles. `policy` decides on each launch; `plans` are the first one's."""

    def __init__(
        self,
        run: RunSpec,
        found: Preflight,
        progress: Progress,
        folder: Path,
        policy: LaunchPolicy,
        *,
        saves: bool = True,
    ) -> None:
        super().__init__(run, found, progress, folder, saves=saves)
        self.policy = policy
        self.plans: list[JobPlan] = []
        records = [item.record for item in found.workloads]
        self.collector = Collector(run, [one.samples for one in records], [one.burst for one in records])
        self.shortages = OomTracker([mode.text for mode in run.modes])

    def frame(self) -> RunFrame:
        """Return the frame, with the modes that the policy ran and those that have failed."""
        fields = self.fields()
        return RunFrame(
            **fields | {"run": self.policy.ran(self.run), "warnings": [*fields["warnings"], *self.policy.warnings]},
            emulated=self.fabric.emulated,
            workloads=[item.record for item in self.found.workloads],
            failed=self.collector.failed,
        )

    def record(self, frame: RunFrame, error: str | None) -> Profile | Comparison:
        """Return the record of the collected events."""
        make = profile_record if self.run.kind == "profile" else comparison_record
        return make(frame, self.collector, error)

    def measure(self) -> None:
        """Run all launches in turn. Raises the error of the first that fails.

        A mode that runs out of memory fails without ending the run (`launch_policy.OomTracker`).
        """
        if self.run.fabric.name == "cluster":  # one launch, of ranks that another launcher started
            take: Take = self.collector.take
            if self.saves:
                self.write_frame()
                take = to_all(Journals(self.folder / "launch0").take, take)
            run_inside(self.run, self.collector, self.progress, self._abandon, take)
            return
        for number in itertools.count():
            launch = self.policy.next_launch(number, self.collector, self.plans)
            if launch is None:
                return
            for sentence in launch.says:
                self.progress.say(sentence)
            self.write_frame()
            self.collector.begin_launch(number)
            self._launch(launch, number)

    def _launch(self, launch: LaunchSpec, number: int) -> None:
        """Start the ranks, and start them anew without each mode that ran out of memory."""
        left = self.shortages.without(launch.phases)
        for start in itertools.count(1):
            left = tuple(phase for phase in left if phase.mode not in self.collector.failed)
            if not left:
                return
            directory = self.folder / (f"launch{number}" if start == 1 else f"launch{number}-{start}")
            directory.mkdir()
            jobs, plans = len(self.run.workloads), tuple(self.plans)
            program = Program(
                run=launch.run, launch=number, phases=left, jobs=jobs, plans=plans, emulated=self.fabric.emulated
            )
            self.shortages.begin()
            take = to_all(self.collector.take, self.shortages.take, self.progress.take)
            outcome = self.start_ranks(program, WORKER, directory, take)
            self.warnings += outcome.warnings
            self.write_frame()
            if number == 0 and not self.plans:
                self.plans += _plans(directory, jobs)
            if outcome.error is None:
                return
            recorded = self.shortages.while_recording(left)
            if recorded is not None:  # the launch has no block after them
                what = f"the recorded steps and the memory of {recorded} and of later modes are incomplete"
                self.warnings.append(f"{what}: {outcome.error}")
                return
            mode = self.shortages.failed() if self.plans else None
            if mode is None:
                raise outcome.error
            hint = f" ({outcome.error.hint})" if outcome.error.hint else ""
            self.collector.failed.setdefault(mode, f"{outcome.error}{hint}")
            self.write_frame()
            self.progress.say(f"{mode} has failed, and the others go on in new ranks: {outcome.error}{hint}")
            left = self.shortages.rest(left)

    def _abandon(self, error: XbenchError) -> NoReturn:
        """Save the measurements and end the process, if it is itself stuck in a collective."""
        try:
            path = keep(self.record(self.frame(), str(error)), self.path)
            hint = f"\n  hint: {error.hint}" if error.hint else ""
            self.progress.say(f"\nrecord: {path}\nerror: {error}{hint}")
        finally:
            sys.stderr.flush()
            os._exit(error.exit_code)


def _plans(directory: Path, jobs: int) -> tuple[JobPlan, ...]:
    """Return the first launch's plans by job; twins share the first's."""
    files = [directory / f"plan{job}.json" for job in range(jobs)]
    read = [JobPlan.model_validate_json(file.read_text()) for file in files if file.exists()]
    return tuple(read) if len(read) == jobs else tuple(read[:1] * jobs)


def _safe(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)[:40]
