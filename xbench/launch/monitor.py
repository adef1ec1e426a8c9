"""Judge of a launch: decides from journals, processes and agents whether it is over, and why.

When one rank dies, the others soon fail too: their connections close, or their agents end them. The user needs the
first cause. So the monitor collects for a second after the first sign of trouble. Then it prefers, in this order: a
rank that a signal killed, one that raised an error of its own, one that ended without a message, and last one that lost
its peers. If there is no better sign than lost peers, the links are checked.

A run without any sign of life is hung. The monitor watches every rank's journal and state note. If none changes for
`silence_s`, or for COMPILING_S while a rank compiles, it names the link that is down, the rank that is stopped, or the
rank that is not waiting for the others.

The monitor starts and ends no process. It reads time and the process table through `Probes`, so tests control both, and
so rank 0 of another launcher's ranks judges by their beats (`launch.heartbeat`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from xbench.errors import FabricError, RankError, RunError, XbenchError
from xbench.launch.agent import describe_exit, exit_codes, last_words, lost_peers, stopped_by_agent
from xbench.rank.events import Event, PhaseBegan, RankEnded, RankFailed, RankStarted
from xbench.rank.journal import Take, pid_alive, process_state
from xbench.torch_compile import COMPILING, COMPILING_S

COLLECT_S = 1.0
START_S = 180.0
END_S = 30.0
DIAGNOSE_S = 5.0

USUAL_S = 120.0
"""Least silence [s] that a hint suggests: the default of `--timeout`."""

KILLED, RAISED, LEFT, LOST_PEERS = range(4)
"""Distance of a sign of trouble from the root cause. The smallest wins, then the earliest."""


@dataclass(frozen=True)
class Probes:
    """Queries of the monitor to the machine."""

    clock: Callable[[], float] = time.monotonic
    alive: Callable[[RankWatch], bool] = lambda rank: rank.pid is not None and pid_alive(rank.pid)
    state: Callable[[RankWatch], str | None] = lambda rank: process_state(rank.pid) if rank.pid is not None else None
    link_fault: Callable[[], str | None] = lambda: None
    disk_full: Callable[[], bool] = lambda: False
    notices_s: float = 0.0
    """Time after which `state` shows that a rank is stopped [s]."""
    vanished: str | None = None
    """Return the words for a rank that is gone or stopped, if nobody can tell which."""


class Reader(Protocol):
    """Source of a rank's events and notes, as `JournalReader` is."""

    job: int
    rank: int

    def poll(self) -> list[Event]:
        """Return the events since the last poll."""

    def state(self) -> tuple[float, str] | None:
        """Return the last note and its time [s], or None."""


@dataclass
class RankWatch:
    """State of one rank of one job."""

    reader: Reader
    host: int
    host_name: str | None = None
    """Name of the host; None: its number."""
    shared: bool = False
    """True if several jobs run, so that messages must name the job."""
    pid: int | None = None
    phase: str | None = None
    error: RankFailed | None = None
    ended: bool = False
    gone_s: float | None = None
    noted: tuple[float, str] | None = None

    def __str__(self) -> str:
        job = f" of job {self.reader.job}" if self.shared else ""
        return f"rank {self.reader.rank}{job} on {self.host_name or f'host {self.host}'}"

    @property
    def activity(self) -> str:
        """Current work, as ' (optimal step 12: waiting for gradients)'. Empty if the rank never reported any."""
        what = (self.noted[1] if self.noted and self.noted[1] else None) or self.phase
        return f" ({what})" if what else ""


@dataclass
class AgentWatch:
    """One agent, the parent of a job's ranks on one host: its log, and how and when it ended (None while it runs)."""

    host: int
    read_log: Callable[[], str]
    job: int
    code: int | None = field(default=None, kw_only=True)
    ended_s: float | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Cause:
    """A sign of trouble: its distance from the root cause, its time, and the error that reports it."""

    weight: int
    at_s: float
    error: XbenchError


@dataclass
class Verdict:
    """End of a launch; `error` is None if it ended well. Logs hold all output of agents and ranks.

    A launch has an error too if the links have changed since they were set up, because its times are of other links.
    """

    error: XbenchError | None
    warnings: list[str] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)


class Monitor:
    """Monitor of one launch. Call `poll` until it returns a verdict."""

    def __init__(
        self,
        ranks: Sequence[RankWatch],
        agents: Sequence[AgentWatch],
        on_event: Take,
        silence_s: float,
        probes: Probes,
        *,
        start_s: float = START_S,
        on_note: Callable[[int, int, float, str], None] = lambda job, rank, at_s, text: None,
    ) -> None:
        self.ranks = list(ranks)
        self.agents = list(agents)
        self._on_event = on_event
        self._on_note = on_note
        self._silence_s = silence_s
        self._start_s = max(start_s, silence_s)
        self._probes = probes
        now = probes.clock()
        self._began_s = self._changed_s = self._asked_s = now
        self._trouble_s: float | None = None
        self._done_s: float | None = None

    def poll(self) -> Verdict | None:
        """Check everything once. Return the verdict if the launch is over."""
        now = self._probes.clock()
        # A process is checked before its journal is read, so that its last events are never missed.
        gone = [rank for rank in self.ranks if rank.pid is not None and not self._probes.alive(rank)]
        self.drain()
        for rank in gone:
            if rank.gone_s is None:
                rank.gone_s = now
        for agent in self.agents:
            if agent.code is not None and agent.ended_s is None:
                agent.ended_s = now
        if self._trouble_s is None and self._trouble():
            self._trouble_s = now
        if self._trouble_s is not None:
            return self._explained(now, self._trouble_s)
        if all(rank.ended for rank in self.ranks):
            return self._finished(now)
        return self._silent(now)

    def drain(self) -> None:
        """Read new journal entries of the ranks and pass their events on."""
        for rank in self.ranks:
            for event in rank.reader.poll():
                self._changed_s = self._probes.clock()
                self._take(rank, event)
                self._on_event(rank.reader.job, rank.reader.rank, event)
            noted = rank.reader.state()
            if noted is not None and noted != rank.noted:
                rank.noted = noted
                self._changed_s = self._probes.clock()
                self._on_note(rank.reader.job, rank.reader.rank, *noted)

    def _take(self, rank: RankWatch, event: Event) -> None:
        match event:
            case RankStarted():
                rank.pid = event.pid
            case PhaseBegan():
                rank.phase = event.name
            case RankFailed():
                rank.error = event
            case RankEnded():
                rank.ended = True

    def _trouble(self) -> bool:
        return (
            any(rank.error is not None for rank in self.ranks)
            or any(rank.gone_s is not None and not rank.ended for rank in self.ranks)
            or any(agent.code not in (None, 0) or (agent.code == 0 and self._owes(agent)) for agent in self.agents)
        )

    def _of(self, agent: AgentWatch) -> list[RankWatch]:
        return [rank for rank in self.ranks if rank.reader.job == agent.job and rank.host == agent.host]

    def _owes(self, agent: AgentWatch) -> bool:
        return any(not rank.ended for rank in self._of(agent))

    def _explained(self, now: float, since_s: float) -> Verdict | None:
        """Return the cause of the trouble, once all ranks have had time to report theirs."""
        if now - since_s < COLLECT_S:
            return None
        cause = self._root_cause()
        if cause is not None and (cause.weight < LOST_PEERS or now - since_s >= COLLECT_S + self._probes.notices_s):
            return Verdict(cause.error)
        if not self._trouble():  # an end that was read late
            self._trouble_s = None
            return None
        # Ranks that their agent ended are an effect. The agent logs the cause after it has ended them.
        if now - since_s < END_S:
            return None
        ended = next(rank for rank in self.ranks if not rank.ended)
        return Verdict(RankError(f"{ended}{ended.activity} was ended by its agent, which gave no reason"))

    def _root_cause(self) -> Cause | None:
        causes = [cause for agent in self.agents for cause in self._causes(agent)]
        if self._probes.disk_full():
            error = RunError(
                "the disk that holds the run's folder is full", hint="free some space, or set XBENCH_RESULTS"
            )
            return Cause(KILLED, 0.0, error)
        cause = min(causes, key=lambda cause: (cause.weight, cause.at_s), default=None)
        if cause is None or cause.weight < LOST_PEERS:
            return cause
        detail = cause.error.detail
        fault = self._probes.link_fault()
        if fault is not None:
            return Cause(KILLED, cause.at_s, FabricError(f"{fault}, so the ranks lost each other", detail=detail))
        stopped = self._stopped()
        if stopped is not None:
            how = self._probes.vanished or "was stopped, and the others gave up waiting"
            return Cause(LEFT, cause.at_s, RankError(f"{stopped}{stopped.activity} {how}", detail=detail))
        return cause

    def _causes(self, agent: AgentWatch) -> list[Cause]:
        """Return the failures under one agent."""
        log = agent.read_log()
        codes, closed = exit_codes(log), stopped_by_agent(log)
        if agent.code is not None and agent.code < 0 and agent.ended_s is not None:
            how = describe_exit(agent.code)
            return [Cause(KILLED, agent.ended_s, RankError(f"the agent of host {agent.host} {how}", detail=log))]
        causes: list[Cause] = []
        for rank in self._of(agent):
            if rank.error is not None:
                causes.append(raised(rank, rank.error))
            elif rank.gone_s is not None and not rank.ended and rank.pid not in closed - codes.keys():
                causes.append(_left(rank, codes.get(rank.pid or 0), log, self._probes.vanished))
        if causes or agent.code is None or agent.ended_s is None:
            return causes
        words = last_words(log)
        weight = LOST_PEERS if lost_peers(words) else RAISED
        if self._owes(agent):
            ranks = [rank for rank in self._of(agent) if not rank.ended]
            who = str(ranks[0]) if len(ranks) == 1 else f"the ranks of host {agent.host}"
            sentence = f"{who} did not start" if ranks[0].pid is None else f"{who} did not finish"
        elif agent.code != 0:
            who = "a rank" if len(self._of(agent)) > 1 else str(self._of(agent)[0])
            code = next(iter(codes.values()), None)
            sentence = f"{who} finished its work and then {describe_exit(code)}"
        else:
            return causes
        return [Cause(weight, agent.ended_s, RankError(f"{sentence}: {words}" if words else sentence, detail=log))]

    def _finished(self, now: float) -> Verdict | None:
        """Wait for the agents after all ranks wrote their end."""
        if all(agent.code == 0 for agent in self.agents):
            return Verdict(None)
        if self._done_s is None:
            self._done_s = now
        if now - self._done_s < min(END_S, self._start_s):
            return None
        hosts = ", ".join(str(agent.host) for agent in self.agents if agent.code is None)
        return Verdict(None, [f"the agent on host {hosts} did not end after its ranks were done, and was ended"])

    def _silent(self, now: float) -> Verdict | None:
        """Return a verdict if no rank has reported for too long, or a link is down."""
        started = all(rank.pid is not None for rank in self.ranks)
        limit_s = self._silence_s if started else self._start_s
        if any(COMPILING in rank.activity for rank in self.ranks if not rank.ended):
            limit_s = max(limit_s, COMPILING_S)
        quiet_s = now - self._changed_s
        if quiet_s >= min(DIAGNOSE_S, limit_s / 2) and now - self._asked_s >= min(DIAGNOSE_S, limit_s / 2):
            self._asked_s = now
            fault = self._probes.link_fault()
            if fault is not None:
                return Verdict(FabricError(f"{fault}, so the ranks cannot reach each other"))
        if quiet_s < limit_s:
            return None
        if not started:
            late = next(rank for rank in self.ranks if rank.pid is None)
            log = next((a.read_log() for a in self.agents if (a.job, a.host) == (late.reader.job, late.host)), "")
            return Verdict(RankError(f"{late} did not start within {limit_s:g} s", detail=log or None))
        stopped = self._stopped()
        if stopped is not None:
            how = self._probes.vanished or f"is stopped (as by SIGSTOP) and gave no sign of life for {limit_s:g} s"
            return Verdict(RankError(f"{stopped}{stopped.activity} {how}"))
        # The rank that the others wait for: not waiting itself, and silent the longest.
        open_ranks = [rank for rank in self.ranks if not rank.ended]
        late = min(open_ranks, key=lambda rank: ("waiting" in rank.activity, rank.noted[0] if rank.noted else 0.0))
        limit = ", the limit of --timeout" if limit_s == self._silence_s else ""
        hint = f"it hangs, or needs longer: --timeout {max(USUAL_S, 2 * limit_s):g}s"
        return Verdict(RankError(f"{late}{late.activity} gave no sign of life for {limit_s:g} s{limit}", hint=hint))

    def _stopped(self) -> RankWatch | None:
        for rank in self.ranks:
            open_ = not rank.ended and rank.error is None and rank.pid is not None
            if open_ and self._probes.state(rank) in ("T", "t"):
                return rank
        return None


def raised(rank: RankWatch, error: RankFailed) -> Cause:
    """Return the cause for a rank that wrote an error."""
    message = " ".join(error.message.split()).rstrip(" .:,;") or "an error without a message"
    weight = LOST_PEERS if lost_peers(message) else RAISED
    what = f" {error.said}" if error.said else f"{f': {error.place}' if error.place else ''} raised {message}"
    if error.told:  # an error of ours is a sentence already
        what = f": {error.told}"
    told = RankError(f"{rank}{rank.activity}{what}", hint=error.hint, detail=error.traceback)
    return Cause(RAISED if error.said else weight, error.t, told)


def _left(rank: RankWatch, code: int | None, log: str, vanished: str | None) -> Cause:
    """Return the cause for a rank that is gone and wrote neither an error nor its end."""
    sentence = f"{rank}{rank.activity} {describe_exit(code) if vanished is None else vanished}"
    hint = "if memory ran out, a smaller --batch-size needs less" if code == -9 else None
    weight = KILLED if code is not None and code < 0 else LEFT
    if code is not None and code > 0:
        words = last_words(log)
        sentence += f": {words}" if words else ""
        weight = LOST_PEERS if lost_peers(words) else LEFT
    elif code is None and vanished is None:
        sentence += " before its work was done"
    return Cause(weight, rank.gone_s or 0.0, RankError(sentence, hint=hint, detail=log or None))
