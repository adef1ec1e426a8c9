"""What a live run comes to: its record, with two simulations of the same jobs beside it.

**The forecast** is what the simulator says before the run: all jobs of the file at their declared speeds, a start and a
restart as dear as the policy is told. It can be wrong, and how far it is off says how far such a forecast can be
trusted.

**Afterwards** the simulator is given what the run measured: each job's steps a second on each number of workers, over
all of its incarnations there, checkpoints included; and the overhead of an incarnation, its time from launch until its
slots were free less the steps it did at that speed, as the mean over all that stopped or finished. A start and a
restart both cost that. The policy is told what it was told in the run: the declared speeds and the declared cost, and
measured speeds only once a job has been there. So the simulation knows nothing of when things happened, and its error
is the simulator's alone: it foretells nothing.

What both leave out: others wait while a job that is to shrink stops; jobs that share cores slow each other down;
crashes and controllers that ended.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from xbench.cluster.live.learned import LearnedSpeed
from xbench.cluster.live.state import State
from xbench.cluster.live.track import Track
from xbench.cluster.policy import Cluster
from xbench.cluster.registry import parse_policy
from xbench.cluster.simulated import Finished
from xbench.cluster.simulator import simulate
from xbench.environment import capture
from xbench.errors import SpecError
from xbench.records import Environment, LiveResult, LiveRun, LiveSpan
from xbench.units import format_duration, format_percent
from xbench.version import __version__

GOAL = 0.10
"""Simulated completion times are to be within this share of the live ones."""


def overhead_s(state: State) -> float | None:
    """The mean over incarnations that stopped or finished; None where no speed was measured."""
    found = [
        one.overhead_s
        for track in state.tracks.values()
        for one in track.incarnations
        if one.how in ("stopped", "finished") and one.overhead_s is not None
    ]
    return max(0.0, statistics.fmean(found)) if found else None


def forecast(state: State) -> Mapping[str, Finished]:
    """All jobs, simulated with what was declared, by name; empty where a job has no declared speed.

    Raises RuntimeError and SpecError as `again`.
    """
    jobs = []
    for track in state.tracks.values():
        if track.entry.speed is None:
            return {}
        jobs.append(replace(track.active.job, speed=track.entry.speed))
    began = state.began
    cluster = Cluster(began.slots, began.restart_s, start_s=began.restart_s)
    return {one.job.name: one for one in simulate(jobs, parse_policy(began.policy), cluster).finished}


def again(state: State) -> Mapping[str, Finished]:
    """The jobs that finished, simulated with what the run measured, by name; empty where too little was.

    Raises RuntimeError where the policy leaves jobs waiting, and SpecError where it restarts them without end: only
    with speeds that are far from those that it knew.
    """
    cost_s = overhead_s(state)
    jobs, paces = [], {}
    for track in state.tracks.values():
        if track.finished_s is None:
            continue
        measured = track.speeds()
        if not measured:
            return {}
        job = track.active.job
        known = LearnedSpeed(track.entry.speed, job.speed.sizes)
        jobs.append(replace(job, speed=known))
        paces[job.name] = _Pace(known, measured)
    if cost_s is None or not jobs:
        return {}
    believed = replace(state.cluster, gpus=state.began.slots)
    cluster = Cluster(believed.gpus, cost_s, start_s=cost_s)
    simulated = simulate(jobs, parse_policy(state.began.policy), cluster, believed=believed, truths=paces)
    return {one.job.name: one for one in simulated.finished}


class _Pace:
    """A job's measured speed, of which its policy learns where the job has been, as it does in a live run."""

    def __init__(self, known: LearnedSpeed, measured: Mapping[int, float]) -> None:
        self.known = known
        self.measured = LearnedSpeed(known.declared)
        self.measured.seen = dict(measured)

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """See `Speed`."""
        return self.known.sizes

    def __call__(self, gpus: int) -> float:
        """See `Speed`. It runs there now."""
        speed = self.known.seen[gpus] = self.measured(gpus)
        return speed


def outcome(state: State, error: str | None = None, environment: Environment | None = None) -> LiveRun:
    """The record of a run as it stands; `error`: why it ended early; `environment`: where, and by default here."""
    began = state.began
    warnings = []
    found: list[Mapping[str, Finished]] = []
    for simulation, what in ((forecast, "their declared speeds"), (again, "the speeds that were measured")):
        try:
            found.append(simulation(state))
        except (RuntimeError, SpecError) as failure:
            found.append({})
            warnings.append(f"the same jobs could not be simulated with {what}: {failure}")
    foretold, simulated = found
    jobs = [_result(track, foretold.get(track.name), simulated.get(track.name)) for track in state.tracks.values()]
    if not simulated and any(job.status == "finished" for job in jobs):
        warnings.append("too few steps were seen to measure every speed, so nothing is simulated")
    if state.resumed:
        times = "once" if state.resumed == 1 else f"{state.resumed} times"
        warnings.append(f"the run was resumed {times}, of which the simulation knows nothing")
    if state.resized:
        warnings.append(f"slots were lost or gained, and the simulation has the {began.slots} of the beginning")
    if simulated and any(job.crashes for job in jobs):
        warnings.append("jobs crashed, of which the simulation knows nothing")
    record = LiveRun(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=began.command,
        xbench=__version__,
        complete=state.over,
        error=error,
        policy=began.policy,
        engine="ray" if began.engine == "ray" else "local",
        slots=began.slots,
        believed_restart_s=began.restart_s,
        overhead_s=overhead_s(state),
        retries=began.retries,
        resumed=state.resumed,
        environment=environment or capture(),
        jobs=jobs,
        warnings=warnings,
        spans=[
            LiveSpan(
                job=track.name, slots=list(one.slots), from_s=one.started_s,
                trained_s=one.first[0] if one.first else None, to_s=one.ended_s, from_steps=one.from_steps,
                to_steps=track.steps if one.ended_s is None else one.end_steps, how=one.how or "running",
            )
            for track in state.tracks.values()
            for one in track.incarnations
        ],
    )  # fmt: skip
    return record.model_copy(update={"findings": _findings(record)})


def _result(track: Track, foretold: Finished | None, simulated: Finished | None) -> LiveResult:
    entry = track.entry
    jct_s = None if track.finished_s is None else track.finished_s - entry.arrival_s
    return LiveResult(
        name=entry.name,
        workload=entry.workload,
        steps=entry.steps,
        batch_size=entry.batch_size,
        arrival_s=entry.arrival_s,
        gpus=entry.gpus,
        least=entry.least,
        most=entry.most,
        status="finished" if jct_s is not None else "failed" if track.gave_up is not None else "unfinished",
        reason=track.gave_up or "",
        began_s=track.incarnations[0].started_s if track.incarnations else None,
        finished_s=track.finished_s,
        jct_s=jct_s,
        forecast_jct_s=foretold.jct_s if foretold else None,
        forecast_error=foretold.jct_s / jct_s - 1 if foretold and jct_s else None,
        simulated_jct_s=simulated.jct_s if simulated else None,
        error=simulated.jct_s / jct_s - 1 if simulated and jct_s else None,
        restarts=max(0, len(track.incarnations) - 1),
        simulated_restarts=simulated.restarts if simulated else None,
        crashes=track.crashes,
        lost_steps=track.lost_steps,
        speeds=track.speeds(),
    )


def _findings(record: LiveRun) -> list[str]:
    """How it went, and how near the simulation came, in words."""
    finished = [job for job in record.jobs if job.jct_s is not None]
    failed = [job for job in record.jobs if job.status == "failed"]
    count = f"{len(finished)} of {len(record.jobs)} jobs" if len(finished) < len(record.jobs) else "every job"
    said = []
    if finished:
        ends = [job.jct_s for job in finished if job.jct_s is not None]
        said.append(
            f"{count[:1].upper()}{count[1:]} finished under {record.policy}; the mean job completion time is "
            f"{format_duration(statistics.fmean(ends))}."
        )
    else:
        said.append(f"No job finished under {record.policy}.")
    if failed:
        said.append(f"Given up: {', '.join(job.name for job in failed)}.")
    foretold = {job.name: job.forecast_error for job in finished if job.forecast_error is not None}
    if foretold:
        cost = format_duration(record.believed_restart_s)
        said.append(f"Forecast from declared speeds and starts of {cost}, completion times are {_off(foretold)}.")
    errors = {job.name: job.error for job in finished if job.error is not None}
    if errors:
        within = "within" if max(map(abs, errors.values())) <= GOAL else "not within"
        said.append(
            f"Simulated again with what the run itself measured, they are {within} {format_percent(GOAL, 0)} of the "
            f"live ones: {_off(errors)}."
        )
    return said


def _off(errors: Mapping[str, float]) -> str:
    """'off by 2.0 % on average, by 5.5 % at most (long)'."""
    worst = max(errors, key=lambda name: abs(errors[name]))
    mean = statistics.fmean(abs(error) for error in errors.values())
    return f"off by {format_percent(mean)} on average, by {format_percent(abs(errors[worst]))} at most ({worst})"
