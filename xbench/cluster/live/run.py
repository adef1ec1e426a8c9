"""`xbench cluster run`: jobs of a file, a policy and an engine to a record. All is checked before anything is started.

The run's folder holds the ledger (`cluster.live.ledger`), a folder a job, and in the end `record.json`; where
that is missing, `outcome.rebuilt` makes it of the ledger. A run that ended early, by Ctrl-C, by kill -9 or by the
machine, is gone on with from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from xbench import environment
from xbench.cluster.live.attempt import Engine, attempt_of
from xbench.cluster.live.controller import Clock, Controller
from xbench.cluster.live.jobs_file import JobEntry, check_fit, load_jobs
from xbench.cluster.live.ledger import Ledger, RunRequest, RunStarted
from xbench.cluster.live.outcome import outcome
from xbench.cluster.live.state import State
from xbench.errors import Interrupted, SpecError
from xbench.interrupts import interrupts_held
from xbench.record_files import RECORD, results_folder
from xbench.records import LiveRun
from xbench.runs.frames import LiveFrame, write_frame
from xbench.runs.run_folder import keep, new_run_folder
from xbench.spec import DeviceType

Say = Callable[[str], None]


def begin(jobs: Path, request: RunRequest, slots: int | None, folder: Path | None, say: Say) -> LiveRun:
    """Run the jobs of a file to their end.

    `slots`: None leaves it to the file, and else to the engine. `folder`: None makes a new one in results/runs.

    Raises SpecError, with nothing started, for jobs, a policy or an engine that cannot work; Interrupted when the user
    asked to stop; RunError where another controller holds the folder; OSError.
    """
    file = load_jobs(jobs)
    slots = slots or file.slots
    if slots is not None:
        check_fit(file.jobs, slots)
    if request.address is not None and request.engine != "ray":
        raise SpecError(f"engine {request.engine!r} has no address", hint="--engine ray, or leave out --address")
    began = RunStarted(
        **request.model_dump(),
        slots=slots or max(max(job.gpus, job.least) for job in file.jobs),
        most_slots=slots,
        jobs=list(file.jobs),
    )
    State(began)  # it refuses what the policy cannot serve
    _check_workloads(file.jobs, request.device)
    engine = _make_engine(began, slots)
    try:
        began = began.model_copy(update={"slots": slots or engine.slots})
        state = State(began)
        ledger = Ledger.begin(folder or new_run_folder(results_folder(), "cluster"), began)
    except BaseException:
        engine.close()
        raise
    say(f"{began.policy} runs {len(file.jobs)} jobs on {began.slots} slots ({began.engine}); all is in {ledger.folder}")
    return _run(state, ledger, engine, say)


def resume(folder: Path, say: Say, retries: int | None = None) -> LiveRun:
    """Go on with the run of a folder. `retries`: try given-up jobs again, each crash so many times.

    Raises as `begin` does, and RecordError for a broken ledger.
    """
    ledger, events = Ledger.resume(folder)
    try:
        state = State.of(events)
        began = state.began
        given_up = [track.name for track in state.tracks.values() if track.gave_up is not None]
        if state.over and not (given_up and retries is not None):
            what = f"finished, or was given up ({', '.join(given_up)})" if given_up else "is over"
            hint = f"xbench cluster run --resume {folder} --retries 3" if given_up else f"xbench report {folder}"
            raise SpecError(f"every job of the run in {str(folder)!r} {what}", hint=hint)
        again = given_up if retries is not None else []
        left = [track.entry for track in state.tracks.values() if not track.over or track.name in again]
        _check_workloads(left, began.device, "resume it in the folder in which it began")
        # On Ray there may be no limit on slots; this machine has as many as it had.
        most = began.most_slots if began.engine == "ray" else began.slots
        engine = _make_engine(began, most, fewer=True)
    except BaseException:
        ledger.close()
        raise
    (folder / RECORD).unlink(missing_ok=True)  # the ledger has it all, and more from now on
    say(f"{began.policy} goes on at {state.now_s:.1f} s with {len(left)} of {len(began.jobs)} jobs")
    return _run(state, ledger, engine, say, resumed=True, retries=retries)


def _make_engine(request: RunRequest, slots: int | None, fewer: bool = False) -> Engine:
    """The engine of a request. `fewer`: a Ray cluster may have fewer slots than these, for now. Raises SpecError."""
    if request.engine == "ray":
        from xbench.cluster.live.ray_engine import RayEngine

        return RayEngine(slots, request.device, request.address, fewer)
    from xbench.cluster.live.local_engine import LocalEngine

    return LocalEngine(slots, request.device)


def _run(
    state: State, ledger: Ledger, engine: Engine, say: Say, resumed: bool = False, retries: int | None = None
) -> LiveRun:
    """To the end, whatever it is; the record is kept in the folder in any case."""
    error: str | None = None
    with interrupts_held() as held:
        with suppress(OSError):
            write_frame(LiveFrame(environment=environment.capture()), ledger.folder)
        controller = Controller(state, ledger, engine, Clock(state.now_s), say, lambda: held.count)
        try:
            if resumed:
                controller.resume(retries)
            controller.run()
        except Interrupted:
            error = "it was interrupted"
            raise
        except Exception as failure:
            error = " ".join(f"{type(failure).__name__}: {failure}".split())
            raise
        finally:
            try:
                engine.close()
            finally:
                record = outcome(state, error)
                kept = keep(record, ledger.folder / RECORD)
                ledger.close()
        if held.count:  # while the record was made
            raise Interrupted("interrupted", hint=f"xbench report {kept} shows the run, which is over")
    return record


def _check_workloads(jobs: Iterable[JobEntry], device: DeviceType, hint: str | None = None) -> None:
    """Raise SpecError for the first job of which no attempt could be made. `hint`: that of an error without one."""
    for job in jobs:
        try:
            attempt_of(job, tuple(range(job.least)), device)
        except SpecError as error:
            raise SpecError(f"job {job.name!r}: {error}", hint=error.hint or hint) from None
