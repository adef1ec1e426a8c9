"""Every mode of a comparison, and every fact about it: one `ModeInfo` each. Nothing here imports torch.

A mode of one job is a schedule, in a file of its own. A paired mode is a way in which two jobs share the devices; the
gradients of each travel by a schedule of one job, its base schedule.

No other module names a mode but a schedule's own; `ddp`, `compute` and `auto` may be named as what they are: the
reference, the control, and the search. Whoever needs a fact asks the mode for it. Code that a fact names is written
'module:attribute' and imported when it is used; but for schedules, it must not import torch.

Other packages add modes through the entry-point group `xbench.modes`. An entry point gives a `ModeInfo`, which makes
its mode the equal of those below, or a `Schedule` class, which then is a mode without a plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Literal

from xbench.errors import SpecError, unknown
from xbench.registry import imported

GROUP = "xbench.modes"

Reducer = Literal["ddp", "engine", "own", "none"]
Overlaps = Literal["backward", "next_forward", "none"]
Travels = Literal["whole", "halves", "parts"]
Gradients = Literal["all", "partial", "local"]
Sharing = Literal["one after the other", "at once", "in turns"]

MAX_CHANGE = 6


@dataclass(frozen=True)
class ModeInfo:
    """One mode. The defaults are those of a schedule on our engine that is never planned."""

    name: str
    summary: str = ""
    """One line of at most 80 characters, for `xbench modes`."""
    schedule: str = ""
    """The class that attaches it; empty for a paired mode."""
    planner: str | None = None
    """Function from (`Planner`, `ModeInfo`) to its buckets, as indices of `Planner.step.gradients` in launch order, or
    to a `Candidate`; None: it has no plan."""
    plan_note: str | None = None
    """Function from (`Planner`, predicted step [s]) to a sentence on its plan."""
    takes_plan: bool = True
    """Whether its schedule is given the plan's buckets."""
    needs_link: bool = False
    """Whether its plan depends on the link's speed, so that a cost model is needed."""
    reducer: Reducer = "engine"
    """What launches collectives: DDP's reducer, our engine, something of its own, or nothing."""
    library: str | None = None
    """Library whose own collectives send its gradients; they are neither emulated nor counted."""
    overlap: Overlaps = "backward"
    """What gradients travel beside: the backward pass, the next forward pass too, or nothing."""
    travels: Travels = "whole"
    """How buckets are sent under `next_forward`: in halves (reduce-scatter, all-gather) or in parts with priorities."""
    gradients: Gradients = "all"
    """Which gradients are averaged: all, as DDP does; some, so that it is another training; or none."""
    trial_rank: int | None = None
    """Place of its buckets among those that `auto` tries in real steps; None: `auto` tries others."""
    script_change: int = MAX_CHANGE
    """How much it changes in a training script: 0 nothing, 1 an argument, 2 a call, 3 a call with a plan, 4 a call that
    sends every gradient by itself, 5 a call after which parameters are updated in the next forward pass, 6 more."""
    buckets_of: tuple[str, ...] = ()
    """Modes whose buckets it is given in place of a plan of its own: the first that is planned."""
    paced_by: str | None = None
    """Mode whose predicted step says how long its own may take, where it has no plan."""
    predictor: str | None = None
    """Function from (planner, buckets, layers, options, workers) to its step [s], where it has no plan."""
    options: str | None = None
    """Function from (text, options) to the checked options; None: it takes none."""
    cycle: str | None = None
    """Function from its options to the number of steps after which steps repeat; None: 1."""
    obstacle: str | None = None
    """Function that returns why it cannot run here, in half a sentence, or None."""
    remedy: str | None = None
    """Command that removes the obstacle."""
    sharing: Sharing | None = None
    """How two jobs share the devices; None: it is of one job."""
    base_schedule: str = ""
    """The schedule that carries a paired mode's gradients unless another is named."""

    def __post_init__(self) -> None:
        if self.planner is not None and (self.overlap == "next_forward") != (self.travels != "whole"):
            raise ValueError(
                f"mode {self.name!r}: plans for the next forward pass, and no others, need halves or parts"
            )

    @property
    def paired(self) -> bool:
        """Whether it is of two jobs."""
        return self.sharing is not None

    @property
    def together(self) -> bool:
        """Whether several jobs run at once, so that a sample is cut to their common window."""
        return self.sharing in ("at once", "in turns")

    @property
    def equivalent_to_ddp(self) -> bool:
        """Whether it trains the network that DDP trains, to which the correctness gate holds it."""
        return self.gradients == "all"

    @property
    def trains(self) -> bool:
        """Whether all ranks train one network, be it DDP's or another."""
        return self.gradients != "local"

    @property
    def puts_off(self) -> bool:
        """Whether updates wait for the next forward pass."""
        return self.overlap == "next_forward"

    @property
    def early_update(self) -> bool:
        """Whether the optimizer updates what has arrived while the rest travels."""
        return self.reducer == "engine" and not self.puts_off

    @property
    def follows_plan(self) -> bool:
        """Whether its schedule is made from a plan."""
        return self.planner is not None and self.takes_plan


EXACT = "optimal"
"""Plan that is the exact optimum of a link that costs computation nothing."""

UNMERGED = "wfbp"
"""Schedule that needs no plan and no choice: a collective a tensor."""

TUNED_DDP = "ddp-tuned"
"""DDP itself with a plan's buckets."""

IN_SEQUENCE = "sequential"
"""What two jobs that share the devices are compared with."""

COMPARED = "compute,ddp,single,wfbp,mgwfbp,optimal,auto"
"""Modes of `xbench compare` and `xbench validate` unless others are named."""

TUNED = "auto,ddp-tuned,optimal,mgwfbp,single"
"""Those of `xbench tune`."""

CONVERGED = "ddp,spb,spb:variant=temporal"
"""Those of `xbench converge`."""

_PLANNERS = "xbench.planning.planners:"

_OURS = (
    ModeInfo(
        "compute",
        "no communication at all: the control",
        "xbench.schedules.compute:Compute",
        planner=_PLANNERS + "nothing",
        takes_plan=False,
        reducer="none",
        overlap="none",
        gradients="local",
    ),
    ModeInfo(
        "ddp",
        "DistributedDataParallel as it comes: 1 MiB bucket, then 25 MiB",
        "xbench.schedules.ddp:Ddp",
        planner=_PLANNERS + "ddp",
        takes_plan=False,
        reducer="ddp",
        trial_rank=2,
        script_change=0,
    ),
    ModeInfo(
        "ddp-tuned",
        "DDP's own reducer with the exact plan's buckets",
        "xbench.schedules.ddp_tuned:DdpTuned",
        planner=_PLANNERS + "tuned_ddp",
        needs_link=True,
        reducer="ddp",
        script_change=1,
    ),
    ModeInfo(
        "single",
        "one collective after the whole backward pass",
        "xbench.schedules.single:Single",
        planner=_PLANNERS + "single",
        overlap="none",
        trial_rank=4,
        script_change=2,
    ),
    ModeInfo(
        "wfbp",
        "one collective a tensor, as soon as it is ready",
        "xbench.schedules.wfbp:Wfbp",
        planner=_PLANNERS + "wfbp",
        trial_rank=5,
        script_change=4,
    ),
    ModeInfo(
        "mgwfbp",
        "the MG-WFBP paper's greedy merging",
        "xbench.schedules.mgwfbp:MgWfbp",
        planner=_PLANNERS + "mgwfbp",
        plan_note=_PLANNERS + "mgwfbp_note",
        needs_link=True,
        trial_rank=3,
        script_change=3,
    ),
    ModeInfo(
        "optimal",
        "exact best buckets for a link that costs computation nothing",
        "xbench.schedules.optimal:Optimal",
        planner=_PLANNERS + "optimal",
        plan_note=_PLANNERS + "optimal_note",
        needs_link=True,
        trial_rank=1,
        script_change=3,
    ),
    ModeInfo(
        "auto",
        "the best plan of a search that knows what traffic costs compute",
        "xbench.schedules.auto:Auto",
        planner=_PLANNERS + "searched",
        needs_link=True,
        script_change=3,
    ),
    ModeInfo(
        "dear",
        "reduce-scatters during backward, all-gathers during the next forward pass",
        "xbench.schedules.dear:Dear",
        planner=_PLANNERS + "in_halves",
        needs_link=True,
        overlap="next_forward",
        travels="halves",
        script_change=5,
    ),
    ModeInfo(
        "priority",
        "parts of tensors, in the order in which the next forward pass needs them",
        "xbench.schedules.priority:Priority",
        planner=_PLANNERS + "in_parts",
        needs_link=True,
        overlap="next_forward",
        travels="parts",
        script_change=5,
    ),
    ModeInfo(
        "spb",
        "partial backpropagation: fewer gradients, so another training; :variant=,k=",
        "xbench.schedules.spb:Spb",
        gradients="partial",
        buckets_of=("optimal", "wfbp"),
        predictor="xbench.planning.partial:predict",
        options="xbench.planning.partial:options",
        cycle="xbench.planning.partial:cycle",
    ),
    ModeInfo(
        "horovod",
        "Horovod's own optimizer: fusion=128 MiB, cycle=1 ms, unless it says otherwise",
        "xbench.schedules.horovod:Horovod",
        takes_plan=False,
        reducer="own",
        library="Horovod",
        paced_by="ddp",
        options="xbench.horovod.options:checked",
        obstacle="xbench.horovod.available:obstacle",
        remedy="make horovod",
    ),
    ModeInfo(
        "sequential",
        "two jobs one after the other, each with the devices to itself",
        sharing="one after the other",
        base_schedule="ddp",
    ),
    ModeInfo("concurrent", "two jobs at once, without turns", sharing="at once", base_schedule="ddp"),
    ModeInfo(
        "crossover",
        "two jobs in turns: one computes while the other communicates",
        sharing="in turns",
        base_schedule="optimal",
    ),
)

_SHARDED = "every mode keeps whole parameters on every rank, and none shards them"
_ABSENT = dict.fromkeys(("fsdp", "fsdp2", "zero", "zero1", "zero2", "zero3", "deepspeed"), _SHARDED)
_ABSENT |= {"hvd": "Horovod's is called horovod", "dp": "DistributedDataParallel is called ddp"}
_ABSENT |= {"bytescheduler": "its order of sending is called priority"}


class Modes:
    """All modes in order: ours, then those of other packages, which are read when they are first asked for."""

    def __init__(self) -> None:
        self._infos = {info.name: info for info in _OURS}
        self._scanned = False
        self.broken: dict[str, str] = {}
        """Modes of other packages that cannot be imported, each with the reason."""

    def __contains__(self, name: str) -> bool:
        return name in self._all()

    def __iter__(self) -> Iterator[ModeInfo]:
        return iter(self._all().values())

    def names(self) -> list[str]:
        """All names, in order."""
        return list(self._all())

    def entry(self, name: str) -> ModeInfo:
        """The mode of that name. Raises SpecError with the nearest name."""
        found = self._all().get(name)
        if found is not None:
            return found
        if name in self.broken:
            raise SpecError(f"mode {name!r} cannot be imported: {self.broken[name]}")
        if name.lower() in _ABSENT:
            hint = f"{_ABSENT[name.lower()]} (xbench modes lists them all)"
            raise SpecError(f"unknown mode {name!r}", hint=hint)
        raise unknown("mode", name, self._all(), listing="xbench modes")

    def load(self, name: str) -> object:
        """Import and return the schedule of a mode of one job. Raises SpecError for an unknown name."""
        return imported(self.entry(name).schedule)

    def _all(self) -> dict[str, ModeInfo]:
        if not self._scanned:
            self._scanned = True
            for point in entry_points(group=GROUP):
                if point.name not in self._infos:
                    self._add(point)
        return self._infos

    def _add(self, point: EntryPoint) -> None:
        try:
            given = point.load()
        except Exception as error:  # whatever a stranger's module raises must not end a run of other modes
            self.broken[point.name] = f"{type(error).__name__}: {error}"
            return
        if isinstance(given, ModeInfo):
            self._infos[point.name] = replace(given, name=point.name)
        else:
            self._infos[point.name] = ModeInfo(point.name, f"from {point.value}", point.value)


MODES = Modes()


def mode_info(name: str) -> ModeInfo:
    """The mode of that name; for one that only a record knows, a mode of which nothing is known."""
    return MODES.entry(name) if name in MODES else ModeInfo(name)


def waiting_modes() -> tuple[str, ...]:
    """Planned modes whose next forward pass waits for all gradients."""
    return tuple(info.name for info in MODES if info.planner is not None and not info.puts_off)


def next_forward_modes() -> tuple[str, ...]:
    """Planned modes each layer of whose next forward pass waits for its own gradients."""
    return tuple(info.name for info in MODES if info.planner is not None and info.puts_off)


def planned_modes() -> tuple[str, ...]:
    """All modes that a plan can be made for."""
    return (*waiting_modes(), *next_forward_modes())


def tried_modes() -> tuple[str, ...]:
    """Modes whose buckets `auto` tries, in the order in which it does."""
    tried = [info for info in MODES if info.trial_rank is not None]
    return tuple(info.name for info in sorted(tried, key=lambda info: info.trial_rank or 0))


def mode_that_travels(travels: Travels) -> str:
    """Our mode whose buckets are sent in this way."""
    return next(info.name for info in _OURS if info.travels == travels)
