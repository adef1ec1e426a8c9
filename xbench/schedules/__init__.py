"""The modes of a comparison, by name. Importing this package does not import torch.

A single-job mode is a `Schedule` (see `schedules.engine`) in a file of its own. A paired mode says how two jobs share
the devices; the gradients of each job are carried by a single-job mode, its carrier.

Facts of an entry: `planned` (its buckets come from a planner), `synchronous` False (it does not train the network that
DDP trains, so the correctness gate leaves it out), `options` ('module:function' that is given (text, options) and
returns the checked options by name; it must not import torch), `next_forward` (its updates are put off into the next
forward pass), `gradients` "partial" (all ranks train one network, by gradients that are not DDP's), `cycle`
('module:function' from checked options to the number of steps after which steps repeat), `obstacle` ('module:function'
that returns why the mode cannot run here, in half a sentence, or None; it must not import torch either) and `remedy`
(the command that mends it), `paired` and `carrier`.
"""

from __future__ import annotations

import importlib

from xbench.errors import SpecError, unknown
from xbench.registry import Registry
from xbench.spec import ModeSpec, parse_options

_SHARDED = "every mode keeps whole parameters on every rank, and none shards them"
_ABSENT = dict.fromkeys(("fsdp", "fsdp2", "zero", "zero1", "zero2", "zero3", "deepspeed"), _SHARDED)
_ABSENT |= {"hvd": "Horovod's is called horovod", "dp": "DistributedDataParallel is called ddp"}
_ABSENT |= {"bytescheduler": "its order of sending is called priority"}

MODES: Registry[object] = Registry("mode", listing="xbench modes", group="xbench.modes", absent=_ABSENT)
MODES.add("compute", "xbench.schedules.compute:Compute", "no communication at all: the control", synchronous=False)
MODES.add("ddp", "xbench.schedules.ddp:Ddp", "DistributedDataParallel as it comes: 1 MiB bucket, then 25 MiB")
MODES.add(
    "ddp-tuned", "xbench.schedules.ddp_tuned:DdpTuned", "DDP's own reducer with the exact plan's buckets", planned=True
)
MODES.add("single", "xbench.schedules.single:Single", "one collective after the whole backward pass", planned=True)
MODES.add("wfbp", "xbench.schedules.wfbp:Wfbp", "one collective a tensor, as soon as it is ready", planned=True)
MODES.add("mgwfbp", "xbench.schedules.mgwfbp:MgWfbp", "the MG-WFBP paper's greedy merging", planned=True)
MODES.add(
    "optimal",
    "xbench.schedules.optimal:Optimal",
    "exact best buckets for a link that costs computation nothing",
    planned=True,
)
MODES.add(
    "auto",
    "xbench.schedules.auto:Auto",
    "the best plan of a search that knows what traffic costs compute",
    planned=True,
)
MODES.add(
    "dear",
    "xbench.schedules.dear:Dear",
    "reduce-scatters during backward, all-gathers during the next forward pass",
    planned=True,
    next_forward=True,
)
MODES.add(
    "priority",
    "xbench.schedules.priority:Priority",
    "parts of tensors, in the order in which the next forward pass needs them",
    planned=True,
    next_forward=True,
)
MODES.add(
    "spb",
    "xbench.schedules.spb:Spb",
    "partial backpropagation: fewer gradients, so another training; :variant=,k=",
    synchronous=False,
    gradients="partial",
    options="xbench.planning.partial:options",
    cycle="xbench.planning.partial:cycle",
)
MODES.add(
    "horovod",
    "xbench.schedules.horovod:Horovod",
    "Horovod's own optimizer: fusion=128 MiB, cycle=1 ms, unless it says otherwise",
    options="xbench.horovod.options:checked",
    obstacle="xbench.horovod.available:obstacle",
    remedy="make horovod",
)
MODES.add("sequential", "", "two jobs one after the other, each with the devices to itself", paired=True, carrier="ddp")
MODES.add("concurrent", "", "two jobs at once, without turns", paired=True, carrier="ddp")
MODES.add(
    "crossover", "", "two jobs in turns: one computes while the other communicates", paired=True, carrier="optimal"
)


def parse_mode(text: str) -> ModeSpec:
    """A ModeSpec from 'optimal', 'crossover:mgwfbp' or 'horovod:fusion=32,cycle=5'.

    Raises SpecError with the nearest right one.
    """
    name, colon, carrier = text.strip().partition(":")
    entry = MODES.entry(name)
    if not entry.facts.get("paired"):
        if colon and "=" in carrier and "options" not in entry.facts:
            raise SpecError(f"mode {name!r} takes no options, and {text!r} gives some", hint=f"write {name}")
        if colon and "=" not in carrier:
            raise SpecError(f"mode {name!r} takes no carrier, and {text!r} gives one", hint=f"write {name}")
        options: dict[str, str] = {}
        if "options" in entry.facts:
            module, _, function = entry.facts["options"].partition(":")
            options = getattr(importlib.import_module(module), function)(text, parse_options(text)[1])
        return ModeSpec(text=_canonical(name, options), name=name, carrier=name, options=tuple(options.items()))
    singles = [e.name for e in MODES if not e.facts.get("paired") and e.facts.get("synchronous", True)]
    if colon and carrier not in singles:
        raise unknown(f"carrier for {name}", carrier, singles, listing="xbench modes")
    chosen = carrier or entry.facts["carrier"]
    if name == "crossover" and puts_off(chosen):
        raise SpecError(
            f"crossover waits for a job's gradients before its next turn, and {chosen!r} waits for them in it",
            hint="write crossover:optimal",
        )
    return ModeSpec(text=f"{name}:{chosen}" if colon else name, name=name, carrier=chosen, paired=True)


def puts_off(carrier: str) -> bool:
    """Whether the single-job mode of this name puts updates off into the next forward pass."""
    return bool(MODES.entry(carrier).facts.get("next_forward"))


def cycle_of(mode: ModeSpec) -> int:
    """After how many steps the mode's steps repeat: 1 for most."""
    named = MODES.entry(mode.carrier).facts.get("cycle")
    if named is None:
        return 1
    module, _, function = named.partition(":")
    steps: int = getattr(importlib.import_module(module), function)(dict(mode.options))
    return steps


def obstacle(name: str) -> str | None:
    """Why the single-job mode of this name cannot run here, in half a sentence, or None."""
    facts = MODES.entry(name).facts
    if "obstacle" not in facts:
        return None
    module, _, function = facts["obstacle"].partition(":")
    why: str | None = getattr(importlib.import_module(module), function)()
    return why


def _canonical(name: str, options: dict[str, str]) -> str:
    return f"{name}:" + ",".join(f"{key}={value}" for key, value in options.items()) if options else name


def parse_modes(text: str) -> tuple[ModeSpec, ...]:
    """Modes from a comma-separated list. `ddp@a` names a second copy of `ddp` (for A/A comparisons).

    A piece 'key=value' belongs to the mode before it: 'horovod:fusion=32,cycle=5,ddp' are two modes.

    Raises SpecError for an unknown mode, an empty list, or a mode that stands twice.
    """
    modes: list[ModeSpec] = []
    pieces: list[str] = []
    for piece in text.split(","):
        if pieces and "=" in piece and ":" not in piece and ":" in pieces[-1]:
            pieces[-1] += f",{piece}"
        else:
            pieces.append(piece)
    for piece in pieces:
        plain, at, alias = piece.strip().partition("@")
        if not plain:
            raise SpecError(f"the list of modes {text!r} has an empty place", hint="write --modes ddp,auto")
        if at and not alias.isidentifier():
            raise SpecError(f"{piece.strip()!r}: the name after '@' must be letters and digits", hint=f"{plain}@b")
        mode = parse_mode(plain)
        if at:
            mode = mode.model_copy(update={"text": f"{mode.text}@{alias}"})
        if any(other.text == mode.text for other in modes):
            raise SpecError(f"mode {mode.text!r} stands twice", hint=f"name a second copy, as in {mode.text}@b")
        modes.append(mode)
    return tuple(modes)
