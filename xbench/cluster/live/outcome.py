"""Record of a live run, with two simulations of the same jobs.

**The forecast** is a simulation before the run: all jobs of the file at their declared speeds, with the declared cost
of starts and restarts. Its error tells how far such a forecast can be trusted.

**The replay** is a simulation with the run's measurements: each job's steps a second on each number of workers, over
all its attempts there, and the mean overhead of an attempt (`overhead_s`), which a start and a restart both cost. The
policy knows what it knew in the run: the declared speeds and cost, and a measured speed only once a job has been there.
So the simulation knows no times of events, and its error is the simulator's alone. It is not a prediction.

Both ignore that jobs wait while a shrinking job stops, that jobs on shared cores slow each other down, and crashes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from xbench.cluster.live import ledger
from xbench.cluster.live.state import JobState, LearnedSpeed, State
from xbench.cluster.metrics import Finished
from xbench.cluster.policies import parse_policy
from xbench.cluster.policy import Cluster
from xbench.cluster.simulator import simulate
from xbench.environment import capture
from xbench.errors import RecordError, SpecError
from xbench.record_files import now
from xbench.records import Environment, LiveResult, LiveRun, LiveSpan
from xbench.runs.frames import LiveFrame
from xbench.runs.rebuild import WHY, made, read_frame
from xbench.spec import parse_options
from xbench.text import counted
from xbench.units import format_duration, format_percent, format_seconds
from xbench.version import __version__

GOAL = 0.10
"""Goal: largest error, as a share, of simulated completion times against the live ones."""


def overhead_s(state: State) -> float | None:
    """Mean overhead [s] of attempts that stopped or finished; None without a measured speed."""
    overheads_s = [
        attempt.overhead_s
        for track in state.tracks.values()
        for attempt in track.attempts
        if attempt.how in ("stopped", "finished") and attempt.overhead_s is not None
    ]
    return max(0.0, statistics.fmean(overheads_s)) if overheads_s else None


def forecast(state: State) -> Mapping[str, Finished]:
    """All jobs, simulated with declared speeds, by name; empty if a job has no declared speed.

    Raises RuntimeError and SpecError as `again` does.
    """
    jobs = []
    for track in state.tracks.values():
        if track.entry.speed is None:
            return {}
        jobs.append(replace(track.active.job, speed=track.entry.speed))
    began = state.began
    cluster = Cluster(began.slots, began.restart_s, start_s=began.restart_s)
    return {finished.job.name: finished for finished in simulate(jobs, parse_policy(began.policy), cluster).finished}


def again(state: State) -> Mapping[str, Finished]:
    """The finished jobs, simulated with the run's measurements, by name; empty without enough measurements.

    Raises RuntimeError if the policy leaves jobs waiting, and SpecError if it restarts them without end. That happens
    only with speeds that are far from those that it knew.
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
        paces[job.name] = _learning(known, measured)
    if cost_s is None or not jobs:
        return {}
    believed = replace(state.cluster, gpus=state.began.slots)
    cluster = Cluster(believed.gpus, cost_s, start_s=cost_s)
    simulated = simulate(jobs, parse_policy(state.began.policy), cluster, believed=believed, truths=paces)
    return {finished.job.name: finished for finished in simulated.finished}


def _learning(known: LearnedSpeed, measured: Mapping[int, float]) -> Callable[[int], float]:
    """A job's measured speed. The policy learns it where the job has been, as in a live run."""
    real = LearnedSpeed(known.declared)
    real.seen = dict(measured)

    def speed(gpus: int) -> float:
        known.seen[gpus] = real(gpus)
        return known.seen[gpus]

    return speed


def outcome(state: State, error: str | None = None, environment: Environment | None = None) -> LiveRun:
    """Record of a run so far. `error`: reason of an early end. `environment`: by default that of this machine."""
    began = state.began
    warnings = []
    simulations: list[Mapping[str, Finished]] = []
    for simulation, speeds in ((forecast, "their declared speeds"), (again, "the speeds that were measured")):
        try:
            simulations.append(simulation(state))
        except (RuntimeError, SpecError) as failure:
            simulations.append({})
            warnings.append(f"the same jobs could not be simulated with {speeds}: {failure}")
    forecasts, simulated = simulations
    jobs = [_result(track, forecasts.get(track.name), simulated.get(track.name)) for track in state.tracks.values()]
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
        created=now(),
        command=began.command,
        xbench=__version__,
        complete=state.over,
        error=error,
        policy=began.policy,
        engine=began.engine,
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
                job=track.name, slots=list(attempt.slots), from_s=attempt.started_s,
                trained_s=attempt.first[0] if attempt.first else None, to_s=attempt.ended_s,
                from_steps=attempt.from_steps,
                to_steps=track.steps if attempt.ended_s is None else attempt.end_steps, how=attempt.how or "running"
            )
            for track in state.tracks.values()
            for attempt in track.attempts
        ]
    )  # fmt: skip
    return record.model_copy(update={"findings": _findings(record)})


def rebuilt(folder: Path) -> LiveRun:
    """Record of a run that was killed, from its frame and its ledger. Raises RecordError."""
    stored = read_frame(folder, LiveFrame)
    try:
        events, _ = ledger.read(folder)
    except OSError as failed:
        raise RecordError(f"{failed.filename} cannot be read: {failed.strerror}") from None

    def make() -> LiveRun:
        state = State.of(events)
        return outcome(state, None if state.over else WHY.replace("journals", "ledger"), stored.environment)

    return made(folder, make)


def _result(track: JobState, forecast: Finished | None, simulated: Finished | None) -> LiveResult:
    entry = track.entry
    jct_s = None if track.finished_s is None else track.finished_s - entry.arrival_s
    given = ("name", "workload", "steps", "batch_size", "arrival_s", "gpus", "least", "most")
    return LiveResult(
        **{key: getattr(entry, key) for key in given},
        status="finished" if jct_s is not None else "failed" if track.gave_up is not None else "unfinished",
        reason=track.gave_up or "",
        began_s=track.attempts[0].started_s if track.attempts else None,
        finished_s=track.finished_s,
        jct_s=jct_s,
        forecast_jct_s=forecast.jct_s if forecast else None,
        forecast_error=forecast.jct_s / jct_s - 1 if forecast and jct_s else None,
        simulated_jct_s=simulated.jct_s if simulated else None,
        error=simulated.jct_s / jct_s - 1 if simulated and jct_s else None,
        restarts=max(0, len(track.attempts) - 1),
        simulated_restarts=simulated.restarts if simulated else None,
        crashes=track.crashes,
        lost_steps=track.lost_steps,
        speeds=track.speeds(),
    )


def _findings(record: LiveRun) -> list[str]:
    """Sentences on the run and on the accuracy of the simulations."""
    finished = [job for job in record.jobs if job.jct_s is not None]
    failed = [job for job in record.jobs if job.status == "failed"]
    sentences = [f"No job finished under {record.policy}."]
    if finished:
        count = f"{len(finished)} of {len(record.jobs)} jobs" if len(finished) < len(record.jobs) else "Every job"
        mean_s = statistics.fmean(job.jct_s for job in finished if job.jct_s is not None)
        sentences = [
            f"{count} finished under {record.policy}; the mean job completion time is {format_duration(mean_s)}."
        ]
    if failed:
        sentences.append(f"Given up: {', '.join(job.name for job in failed)}.")
    if parse_options(record.policy)[0] == "alternate" and record.overhead_s is not None:
        launches_s = [span.trained_s - span.from_s for span in record.spans if span.trained_s is not None]
        sentences.append(
            f"A restart costs {format_seconds(record.overhead_s)} of training, the mean over "
            f"{counted(len(record.spans), 'attempt')}; from the launch to the first step pass "
            f"{format_seconds(statistics.fmean(launches_s))}."
        )
    forecast_errors = {job.name: job.forecast_error for job in finished if job.forecast_error is not None}
    if forecast_errors:
        cost = format_duration(record.believed_restart_s)
        sentences.append(
            f"Forecast from declared speeds and starts of {cost}, completion times are {_errors_text(forecast_errors)}."
        )
    errors = {job.name: job.error for job in finished if job.error is not None}
    if errors:
        within = "within" if max(map(abs, errors.values())) <= GOAL else "not within"
        sentences.append(
            f"Simulated again with what the run itself measured, they are {within} {format_percent(GOAL, 0)} of the "
            f"live ones: {_errors_text(errors)}."
        )
    return sentences


def _errors_text(errors: Mapping[str, float]) -> str:
    """Errors in words: 'off by 2.0 % on average, by 5.5 % at most (long)'."""
    worst = max(errors, key=lambda name: abs(errors[name]))
    mean = statistics.fmean(abs(error) for error in errors.values())
    return f"off by {format_percent(mean)} on average, by {format_percent(abs(errors[worst]))} at most ({worst})"
