"""Collector of a run's events in the parent: events of all ranks in, samples and profiles out.

It is incremental, so a run that dies keeps its measurements. A block becomes samples once every rank of the job has
reported it. `stats.steps` defines the step time of several ranks. Two jobs that shared the devices give one sample
each, cut to the window in which both ran.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from xbench import records
from xbench.modes import mode_info
from xbench.planning.turns import LETTERS
from xbench.rank import events
from xbench.runs.gpu_use import GpuFindings
from xbench.schedules import cycle_of
from xbench.spec import RunSpec
from xbench.stats.blocks import overlap_rates
from xbench.stats.steps import longest_steps, steps_of_all


@dataclass
class JobFindings:
    """Profile and plans of one job."""

    workload: records.WorkloadRecord | None = None
    layers: list[records.Layer] = field(default_factory=list)
    step: records.StepTimes | None = None
    series: dict[str, list[float]] = field(default_factory=dict)
    cost_model: records.CostModel | None = None
    contention: records.Contention | None = None
    plans: dict[str, records.Plan] = field(default_factory=dict)
    bounds: records.Bounds | None = None
    other_costs: dict[str, records.CostModel] = field(default_factory=dict)
    unit_costs: dict[str, records.UnitCost] = field(default_factory=dict)
    stragglers: records.Stragglers | None = None


class Collector:
    """Collector of events. They may arrive in any order between ranks, but in order within one."""

    def __init__(self, run: RunSpec, batch_sizes: Sequence[int], bursts: Sequence[int] | None = None) -> None:
        self.run = run
        self.batch_sizes = list(batch_sizes)
        self.bursts = list(bursts) if bursts is not None else [1] * len(batch_sizes)
        self.jobs = [JobFindings() for _ in run.workloads]
        self.parity: dict[str, list[records.Parity]] = {}
        self.failed: dict[str, str] = {}
        self.patterns: dict[str, str] = {}
        self.timelines: dict[str, dict[int, events.StepRecorded]] = {}
        self.memory: dict[str, dict[int, events.MemoryMeasured]] = {}
        self.units: dict[str, dict[str, list[str]]] = {}
        self.turns: dict[str, dict[int, list[records.TurnTaken]]] = {}
        self.warnings: list[str] = []
        self.remarks: list[str] = []
        self.calibration: list[records.CalibrationPoint] = []
        self.gpu = GpuFindings()
        self.raw_blocks: dict[tuple[int, str, int], dict[tuple[int, int], events.BlockTimed]] = {}
        self.launch = 0

    def begin_launch(self, launch: int) -> None:
        """Assign the following events to this launch."""
        self.launch = launch

    def take(self, job: int, rank: int, event: events.Event) -> None:
        """Take one journal event."""
        job = job if event.of_job is None else event.of_job
        found = self.jobs[job]
        match event:
            case events.StepProfiled():
                found.workload, found.layers = event.workload, event.layers
                found.step, found.series = event.step, event.series
            case events.SchedulesPlanned():
                found.cost_model, found.contention = event.cost_model, event.contention
                found.plans, found.bounds = event.plans, event.bounds
                found.other_costs, found.unit_costs = event.other_costs, event.unit_costs
            case events.StragglersSought():
                found.stragglers = event.found
            case events.ParityChecked():
                if rank == 0:
                    self.parity.setdefault(event.mode, []).append(event.verdict)
            case events.ModeFailed():
                self.failed.setdefault(event.mode, event.message)
            case events.StepRecorded():
                self.timelines.setdefault(event.mode, {})[rank] = event
            case events.MemoryMeasured():
                self.memory.setdefault(event.mode, {})[rank] = event
            case events.UnitsWrapped():
                self.units[event.mode] = event.units
            case events.TurnsRecorded():
                self.turns.setdefault(event.mode, {})[job] = [
                    records.TurnTaken(job=job, start_s=start_s, computed_s=computed_s, arrived_s=arrived_s)
                    for start_s, computed_s, arrived_s in event.turns
                ]
            case events.Warned():
                self._warn(event.message)
            case events.Remarked():
                if event.message not in self.remarks:
                    self.remarks.append(event.message)
            case events.LinkCalibrated():
                self.calibration = self.calibration or event.points
            case events.GpuMissing():
                self.gpu.missing = self.gpu.missing or event.reason
            case events.GpuWatched():
                self.gpu.take(self.launch, job, event)
            case events.BlockTimed():
                self.raw_blocks.setdefault((self.launch, event.mode, event.round), {})[(job, rank)] = event
                if event.pattern:
                    self.patterns[event.mode] = "".join(LETTERS[j] for j in event.pattern)

    def _warn(self, sentence: str) -> None:
        if sentence not in self.warnings:  # several ranks may write the same warning
            self.warnings.append(sentence)

    def samples(self) -> list[records.Sample]:
        """Return every complete block as samples, in the order of their timing."""
        result: list[records.Sample] = []
        starts: dict[int, float] = {}
        for (launch, _, _), blocks in self.raw_blocks.items():
            first = min(block.stamps[0] for block in blocks.values() if block.stamps)
            starts[launch] = min(first, starts.get(launch, first))
        for (launch, mode, round_), blocks in self.raw_blocks.items():
            result += self._block_samples(launch, mode, round_, blocks, starts[launch])
        return sorted(result, key=lambda s: (s.launch, s.position, s.job))

    def _block_samples(
        self, launch: int, mode: str, round_: int, blocks: Mapping[tuple[int, int], events.BlockTimed], origin_s: float
    ) -> list[records.Sample]:
        fabric = self.run.fabric
        world = fabric.processes
        jobs = sorted({job for job, _ in blocks})
        whole = [job for job in jobs if all((job, rank) in blocks for rank in range(world))]
        ran = next((m for m in self.run.modes if m.text == mode), None)
        if ran is None:
            raise ValueError(f"there is no mode {mode!r} in this run")
        name = ran.name
        together = mode_info(name).together
        if together and len(whole) < len(self.run.workloads):
            return []
        try:
            rates = self._together(blocks, whole, world) if together else {}
        except ValueError as apart:
            self._warn(f"{mode}, round {round_ + 1}: {apart}; longer blocks (without --quick) would overlap")
            return []
        result = []
        for job in whole:
            ranks = [blocks[(job, rank)] for rank in range(world)]
            warmup = ranks[0].warmup
            steps = step_times([block.stamps for block in ranks], communicates=mode_info(ran.carrier).reducer != "none")
            timed = steps[warmup:]
            cycle = math.lcm(cycle_of(ran), self.bursts[job])
            if not timed:
                continue
            result.append(
                records.Sample(
                    launch=launch,
                    round=round_,
                    position=ranks[0].position,
                    mode=mode,
                    job=job,
                    steps_s=timed,
                    step_s=1.0 / rates[job] if together else block_step_s(name, timed, cycle),
                    warmup_s=steps[:warmup],
                    samples_per_step=self.batch_sizes[job] * fabric.world_size,
                    started_s=max(0.0, min(block.stamps[0] for block in ranks) - origin_s),
                    gpu=self.gpu.of_block(launch, mode, round_, job),
                )
            )
        return result

    def _together(
        self, blocks: Mapping[tuple[int, int], events.BlockTimed], jobs: Sequence[int], world: int
    ) -> dict[int, float]:
        """Return the steps per second of each job while all of them ran, on the slowest rank."""
        rates: dict[int, float] = {}
        for rank in range(world):
            ran = [blocks[(job, rank)] for job in jobs]
            together = overlap_rates([block.stamps[block.warmup :] for block in ran])
            for job, rate in zip(jobs, together, strict=True):
                rates[job] = min(rate, rates.get(job, rate))
        return rates


def step_times(stamps: Sequence[Sequence[float]], *, communicates: bool = True) -> list[float]:
    """Return the time of each step [s] of all ranks (`stats.steps`).

    `stamps[rank]` are its step boundaries [s]. The first is the start, which ranks are assumed to share, because
    several machines have separate clocks.
    """
    per_rank_s = [[after - before for before, after in pairwise(rank)] for rank in stamps]
    return steps_of_all(per_rank_s) if communicates else longest_steps(per_rank_s)


def block_step_s(mode: str, steps_s: Sequence[float], cycle: int = 1) -> float:
    """Return the step time of a block [s]: the median, or the mean for two jobs one after the other.

    Two jobs at once are timed by their progress in a window, which is a mean, and their reference is timed the same
    way. If steps differ and repeat after `cycle` of them, it is the median over whole cycles of a cycle's mean step.
    """
    if mode_info(mode).sharing == "one after the other":
        return statistics.fmean(steps_s)
    whole = len(steps_s) // cycle * cycle
    if not whole:  # cut short
        return statistics.fmean(steps_s)
    return statistics.median(statistics.fmean(steps_s[i : i + cycle]) for i in range(0, whole, cycle))
