"""Every mode of a comparison and every fact about it, as one `ModeInfo` each. Nothing here imports torch.

A mode of one job is a schedule. A paired mode is a way in which two jobs share the devices. A schedule of one job, its
base schedule, carries the gradients of each.

No other module names a mode, except a schedule its own. `ddp`, `compute` and `auto` may be named for their roles: the
reference, the control, and the search. Other code asks the mode for a fact. A fact that is code is written
'module:attribute' and imported when it is used. Only code of schedules may import torch.

Other packages add modes through the entry-point group `xbench.modes`. An entry point gives a `ModeInfo`, whose mode is
equal to those below, or a `Schedule` class, which becomes a mode without a plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from typing import Any, Literal

from xbench.errors import SpecError
from xbench.registry import Table, imported

GROUP = "xbench.modes"

Reducer = Literal["ddp", "engine", "own", "none"]
Overlaps = Literal["backward", "next_forward", "none"]
Travels = Literal["whole", "halves", "parts"]
Gradients = Literal["all", "partial", "local"]
Sharing = Literal["one after the other", "at once", "in turns"]

MAX_CHANGE = 6


@dataclass(frozen=True)
class ModeInfo:
    """Facts about one mode. The defaults are those of a schedule on our engine that is never planned."""

    name: str
    summary: str = ""
    """One line of at most 80 characters, for `xbench list modes`."""
    schedule: str = ""
    """Class of the schedule, as 'module:attribute'; empty for a paired mode."""
    planner: str | None = None
    """Function from (`Planner`, `ModeInfo`) to the mode's buckets, as indices of `Planner.step.gradients` in launch
    order, or to a `Candidate`. None: the mode has no plan."""
    plan_note: str | None = None
    """Function from (`Planner`, predicted step [s]) to a sentence about the plan."""
    takes_plan: bool = True
    """True if the schedule takes the plan's buckets."""
    needs_link: bool = False
    """True if the plan depends on the link's speed, so that a cost model is needed."""
    reducer: Reducer = "engine"
    """Part that launches collectives: DDP's reducer, our engine, one of its own, or none."""
    library: str | None = None
    """Library whose own collectives send the gradients. Those are neither emulated nor counted."""
    overlap: Overlaps = "backward"
    """Computation that overlaps communication: the backward pass, the next forward pass too, or none."""
    travels: Travels = "whole"
    """Form of the buckets under `next_forward`: halves (reduce-scatter, all-gather), or parts with priorities."""
    gradients: Gradients = "all"
    """Gradients that are averaged: all, as DDP does; some, which changes the training; or none."""
    candidate_rank: int | None = None
    """Position of its buckets among the candidates of `auto`'s search. None: the search leaves them out."""
    script_change: int = MAX_CHANGE
    """Size of the change in a training script: 0 nothing, 1 an argument, 2 a call, 3 a call with a plan, 4 a call that
    sends every gradient by itself, 5 a call after which parameters are updated in the next forward pass, 6 more."""
    buckets_of: tuple[str, ...] = ()
    """Modes whose buckets it uses in place of a plan of its own. The first planned one counts."""
    paced_by: str | None = None
    """Mode whose predicted step estimates this mode's step, if it has no plan."""
    predictor: str | None = None
    """Function from (planner, buckets, layers, options, workers) to the step [s], if the mode has no plan."""
    forecast: str | None = None
    """Function from a `planning.sharded_step.Sharded` to the step [s], if the mode has neither plan nor predictor."""
    collectives: tuple[str, ...] = ()
    """Collectives beside the all-reduce whose cost its forecast needs. A mode in groups of ranks names its all-reduce
    too: it is one between the groups. So does a mode that waits for each all-reduce over Gloo."""
    halves: tuple[str, str] | None = None
    """Collectives that take the place of its all-reduces over NCCL, where their costs are measured for its plan."""
    units_of: str | None = None
    """Mode whose units cost the host what this mode's cost it, if its forecast counts that."""
    options: str | None = None
    """Function from (text, options) to the checked options. None: the mode takes none."""
    searches: Overlaps = "none"
    """Computation that the plans of its search overlap: backward, or the next forward pass too. None: no search."""
    plans_units: bool = False
    """True if the units that it wraps are planned from the profile (`planning.unit_plan`)."""
    cycle: str | None = None
    """Function from the options to the number of steps after which steps repeat. None: 1."""
    ranks: str | None = None
    """Function from (text, options, world size, ranks a host) to the ranks of a group, if its collectives are those of
    groups of ranks. It raises SpecError where the ranks do not suffice."""
    own_groups: bool = False
    """True if it makes process groups of its own and uses them at once. NCCL must keep the order of launches then."""
    compiled: bool = False
    """True if its model is under torch.compile."""
    carries_pairs: bool = True
    """True if it can carry the gradients of two jobs that share the devices."""
    compresses: bool = True
    """False if a run with compressed gradients is refused beforehand."""
    obstacle: str | None = None
    """Function that returns the reason why the mode cannot run here, as half a sentence, or None."""
    remedy: str | None = None
    """Command that removes the obstacle."""
    sharing: Sharing | None = None
    """Way in which two jobs share the devices. None: a mode of one job."""
    base_schedule: str = ""
    """Schedule that carries a paired mode's gradients unless another is named."""

    def __post_init__(self) -> None:
        if self.planner is not None and (self.overlap == "next_forward") != (self.travels != "whole"):
            raise ValueError(
                f"mode {self.name!r}: plans for the next forward pass, and no others, need halves or parts"
            )

    @property
    def paired(self) -> bool:
        """True if the mode has two jobs."""
        return self.sharing is not None

    @property
    def together(self) -> bool:
        """True if several jobs run at once, so that a sample is cut to their common window."""
        return self.sharing in ("at once", "in turns")

    @property
    def equivalent_to_ddp(self) -> bool:
        """True if it trains the same network as DDP. The parity check compares the two."""
        return self.gradients == "all"

    @property
    def is_bounded(self) -> bool:
        """True if the lower bounds of the model hold for it: it trains what was profiled, with all-reduces alone.

        A mode with other collectives divides parameters or updates among the ranks, and a rank may compute less.
        """
        return self.equivalent_to_ddp and not self.compiled and set(self.collectives) <= {"all_reduce"}

    @property
    def trains(self) -> bool:
        """True if all ranks train one network: DDP's or another."""
        return self.gradients != "local"

    @property
    def puts_off(self) -> bool:
        """True if updates wait for the next forward pass."""
        return self.overlap == "next_forward"

    @property
    def may_put_off(self) -> bool:
        """True if updates wait for the next forward pass, or may do so after its search."""
        return self.puts_off or self.searches == "next_forward"

    @property
    def refuses_late(self) -> bool:
        """True if a model that it cannot serve may show only in a forward pass."""
        return self.puts_off or not self.carries_pairs

    @property
    def early_update(self) -> bool:
        """True if the optimizer updates gradients that have arrived while the rest are being sent."""
        return self.reducer == "engine" and not self.puts_off

    @property
    def follows_plan(self) -> bool:
        """True if its schedule is built from a plan."""
        return self.planner is not None and self.takes_plan


EXACT = "optimal"
"""Mode whose plan is the exact optimum for a link without contention."""

UNMERGED = "wfbp"
"""Schedule that needs no plan and no choice: one collective per tensor."""

TUNED_DDP = "ddp-tuned"
"""DDP with a plan's buckets."""

IN_SEQUENCE = "sequential"
"""Reference of modes in which two jobs share the devices."""

COMPARED = "compute,ddp,single,wfbp,mgwfbp,optimal,auto"
"""Default modes of `xbench compare`."""

TUNED = "auto,ddp-tuned,optimal,mgwfbp,single"
"""Default modes of `xbench tune`."""

CONVERGED = "ddp,spb,spb:variant=temporal"
"""Default modes of `xbench converge`."""

_PLANNERS = "xbench.planning.plans:"
_SHARDED = "xbench.planning.sharded_step:"

_TORCHS: dict[str, Any] = {
    "takes_plan": False, "reducer": "own", "library": "torch", "paced_by": "ddp", "carries_pairs": False,
    "compresses": False,
}  # fmt: skip
"""Facts of modes that torch itself brings: it makes their collectives."""

_COMPILED: dict[str, Any] = {
    "compiled": True, "carries_pairs": False, "obstacle": "xbench.torch_compile:compiler_obstacle"
}  # fmt: skip
"""Facts of modes whose model is under torch.compile."""

_OURS = (
    ModeInfo("compute", "no communication at all: the control", "xbench.schedules.bucketed:Compute",
             planner=_PLANNERS + "nothing", takes_plan=False, reducer="none", overlap="none", gradients="local"),
    ModeInfo("ddp", "DistributedDataParallel as it comes: 1 MiB bucket, then 25 MiB", "xbench.schedules.ddp:Ddp",
             planner=_PLANNERS + "ddp", takes_plan=False, reducer="ddp", candidate_rank=2, script_change=0),
    ModeInfo("ddp-tuned", "DDP's own reducer with the exact plan's buckets", "xbench.schedules.ddp:DdpTuned",
             planner=_PLANNERS + "tuned_ddp", needs_link=True, reducer="ddp", script_change=1),
    ModeInfo("single", "one collective after the whole backward pass", "xbench.schedules.bucketed:Single",
             planner=_PLANNERS + "single", overlap="none", candidate_rank=4, script_change=2),
    ModeInfo("wfbp", "one collective a tensor, as soon as it is ready", "xbench.schedules.bucketed:Wfbp",
             planner=_PLANNERS + "wfbp", candidate_rank=5, script_change=4),
    ModeInfo("mgwfbp", "the MG-WFBP paper's greedy merging", "xbench.schedules.bucketed:MgWfbp",
             planner=_PLANNERS + "mgwfbp", plan_note=_PLANNERS + "mgwfbp_note", needs_link=True, candidate_rank=3,
             script_change=3),
    ModeInfo("optimal", "exact best buckets for a link that costs computation nothing",
             "xbench.schedules.bucketed:Optimal", planner=_PLANNERS + "optimal", plan_note=_PLANNERS + "optimal_note",
             needs_link=True, candidate_rank=1, script_change=3),
    ModeInfo("auto", "the best plan of a search that knows what traffic costs compute",
             "xbench.schedules.bucketed:Auto", planner=_PLANNERS + "searched", needs_link=True, script_change=3,
             searches="backward"),
    ModeInfo("auto:forward", "the same search, with dear and priority among the candidates",
             "xbench.schedules.bucketed:Auto", planner=_PLANNERS + "searched", needs_link=True, script_change=5,
             searches="next_forward"),
    ModeInfo("dear", "reduce-scatters during backward, all-gathers during the next forward pass",
             "xbench.schedules.dear:Dear", planner=_PLANNERS + "in_halves", needs_link=True, overlap="next_forward",
             travels="halves", halves=("reduce_scatter", "all_gather"), script_change=5),
    ModeInfo("priority", "parts of tensors, in the order in which the next forward pass needs them",
             "xbench.schedules.priority:Priority", planner=_PLANNERS + "in_parts", needs_link=True,
             overlap="next_forward", travels="parts", script_change=5),
    ModeInfo("spb", "partial backpropagation: fewer gradients, not equivalent to all; :variant=,k=",
             "xbench.schedules.spb:Spb", gradients="partial", buckets_of=("optimal", "wfbp"),
             predictor="xbench.planning.partial:predict", options="xbench.planning.partial:options", own_groups=True,
             cycle="xbench.planning.partial:cycle"),
    ModeInfo("horovod", "Horovod's own optimizer: fusion=128 MiB, cycle=1 ms, unless it says otherwise",
             "xbench.schedules.horovod:Horovod", takes_plan=False, reducer="own", library="Horovod", paced_by="ddp",
             options="xbench.horovod:checked", obstacle="xbench.horovod:obstacle",
             remedy="make horovod in a checkout of xbench"),
    ModeInfo("replicate", "DDP rebuilt on FSDP2: an all-reduce of each block's gradients",
             "xbench.schedules.sharded:Replicate", obstacle=_SHARDED + "replicate_obstacle",
             forecast=_SHARDED + "replicate", units_of="replicate",
             collectives=("all_reduce",), **_TORCHS),
    ModeInfo("fsdp", "FSDP2 (fully_shard): parameters, gradients and optimizer state in shards",
             "xbench.schedules.sharded:Fsdp", forecast=_SHARDED + "fsdp", units_of="fsdp",
             collectives=("all_gather", "reduce_scatter"), **_TORCHS),
    ModeInfo("auto:shard", "FSDP2 with planned units, of several blocks each; ,gathered=",
             "xbench.schedules.sharded:PlannedUnits", forecast=_SHARDED + "fsdp", units_of="fsdp", needs_link=True,
             plans_units=True,
             collectives=("all_gather", "reduce_scatter"), options=_SHARDED + "unit_options", **_TORCHS),
    ModeInfo("hsdp", "fully_shard within groups of ranks, an all-reduce between them; :group=",
             "xbench.schedules.sharded:Hsdp", forecast=_SHARDED + "fsdp", units_of="fsdp",
             collectives=("all_gather", "reduce_scatter", "all_reduce"), options=_SHARDED + "options",
             ranks=_SHARDED + "shard_ranks", **_TORCHS),
    ModeInfo("zero1", "DDP with optimizer state in shards (ZeroRedundancyOptimizer)",
             "xbench.schedules.zero1:Zero1", forecast=_SHARDED + "zero1", collectives=("broadcast",),
             **{**_TORCHS, "reducer": "ddp", "compresses": True}),
    ModeInfo("ddp+compile", "DDP with the model under torch.compile, cut at DDP's buckets",
             "xbench.schedules.compiled:CompiledDdp", takes_plan=False, reducer="ddp", paced_by="ddp", **_COMPILED),
    ModeInfo("fsdp+compile", "FSDP2 with each block under torch.compile",
             "xbench.schedules.compiled:CompiledFsdp", **_TORCHS | _COMPILED),
    ModeInfo("compute+compile", "no communication, the model under torch.compile: the control of compiled modes",
             "xbench.schedules.compiled:CompiledCompute", takes_plan=False, reducer="none", overlap="none",
             gradients="local", paced_by="compute", **_COMPILED),
    ModeInfo("sequential", "two jobs one after the other, each with the devices to itself",
             sharing="one after the other", base_schedule="ddp"),
    ModeInfo("concurrent", "two jobs at once, without turns", sharing="at once", base_schedule="ddp"),
    ModeInfo("crossover", "two jobs in turns: one computes while the other communicates",
             sharing="in turns", base_schedule="optimal"),
)  # fmt: skip

_ABSENT = {"fsdp2": "FSDP2 is called fsdp", "zero3": "the mode that shards all that ZeRO-3 shards is called fsdp"}
_ABSENT |= {"zero": "ZeRO's first stage is called zero1, its third is fsdp"}
_ABSENT |= dict.fromkeys(("zero2", "deepspeed"), "torch's own are called zero1, fsdp and hsdp")
_ABSENT |= {"hvd": "Horovod's is called horovod", "dp": "DistributedDataParallel is called ddp"}
_ABSENT |= {"bytescheduler": "its order of sending is called priority"}


class Modes(Table[ModeInfo]):
    """All modes in order: ours, then those of other packages, which are read on first use."""

    def __init__(self) -> None:
        super().__init__("mode", listing="xbench list modes", group=GROUP)
        self._entries |= {info.name: info for info in _OURS}
        self.broken: dict[str, str] = {}
        """Modes of other packages that cannot be imported, each with the reason."""

    def entry(self, name: str) -> ModeInfo:
        """Return the mode of that name. Raises SpecError with the nearest name."""
        if name not in self and name in self.broken:
            raise SpecError(f"mode {name!r} cannot be imported: {self.broken[name]}")
        if name not in self and name.lower() in _ABSENT:
            hint = f"{_ABSENT[name.lower()]} (xbench list modes has them all)"
            raise SpecError(f"unknown mode {name!r}", hint=hint)
        return super().entry(name)

    def load(self, name: str) -> object:
        """Import and return the schedule of a mode of one job. Raises SpecError for an unknown name."""
        return imported(self.entry(name).schedule)

    def _read(self, point: EntryPoint) -> ModeInfo | None:
        try:
            given = point.load()
        except Exception as error:  # an error in another package's module must not end a run of other modes
            self.broken[point.name] = f"{type(error).__name__}: {error}"
            return None
        if isinstance(given, ModeInfo):
            return replace(given, name=point.name)
        return ModeInfo(point.name, f"from {point.value}", point.value)


MODES = Modes()


def mode_info(name: str) -> ModeInfo:
    """Return the mode of that name. A name that only an old record has gives a mode without facts."""
    return MODES.entry(name) if name in MODES else ModeInfo(name)


def waiting_modes() -> tuple[str, ...]:
    """Return planned modes whose next forward pass waits for all gradients."""
    return tuple(info.name for info in MODES if info.planner is not None and not info.may_put_off)


def next_forward_modes() -> tuple[str, ...]:
    """Return planned modes in which each layer of the next forward pass waits for its own gradients."""
    return tuple(info.name for info in MODES if info.planner is not None and info.puts_off)


def planned_modes() -> tuple[str, ...]:
    """Return all modes that a plan can be made for, and last those whose search is made on request alone."""
    searched = (info.name for info in MODES if info.searches == "next_forward")
    return (*waiting_modes(), *next_forward_modes(), *searched)


def candidate_modes() -> tuple[str, ...]:
    """Return the modes whose buckets are candidates of `auto`'s search, by `candidate_rank`."""
    found = [info for info in MODES if info.candidate_rank is not None]
    return tuple(info.name for info in sorted(found, key=lambda info: info.candidate_rank or 0))


def mode_that_travels(travels: Travels) -> str:
    """Return our mode whose buckets are sent in this form."""
    return next(info.name for info in _OURS if info.travels == travels)
