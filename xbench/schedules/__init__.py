"""Modes of a comparison, as a user writes them. This package alone imports no torch.

A mode of one job is a `Schedule` (see `schedules.base`). `xbench.modes` holds the facts about it.
"""

from __future__ import annotations

from xbench.errors import SpecError, unknown
from xbench.modes import MODES, ModeInfo, mode_info
from xbench.registry import imported
from xbench.spec import ModeSpec, known_options, parse_options, refuse_former
from xbench.text import entries


def parse_mode(text: str) -> ModeSpec:
    """A ModeSpec from 'optimal', 'crossover:mgwfbp' or 'horovod:fusion=32,cycle=5'.

    The form of a mode is part of its name: 'auto:shard,gathered=64MiB' is the mode 'auto:shard' with an option.

    Raises SpecError with the nearest valid name.
    """
    name, colon, rest = text.strip().partition(":")
    form, comma, more = (piece.strip() for piece in rest.partition(","))
    if f"{name}:{form}" in MODES:
        name, colon, rest = f"{name}:{form}", comma, more
    info, given = MODES.entry(name), f"{name.partition(':')[0]}:{rest}"
    if not info.paired:
        if colon and "=" in rest and info.options is None:
            for key in parse_options(given)[1]:
                refuse_former(text, key)
            raise SpecError(f"mode {name!r} takes no options, and {text!r} gives some", hint=f"write {name}")
        if colon and "=" not in rest:
            raise SpecError(f"mode {name!r} takes no carrier, and {text!r} gives one", hint=f"write {name}")
        options: dict[str, str] = {}
        if info.options is not None:
            options = imported(info.options)(text, parse_options(given)[1] if colon else {})
        written = ",".join(f"{key}={value}" for key, value in options.items())
        full = f"{name}{',' if ':' in name else ':'}{written}" if written else name
        return ModeSpec(text=full, name=name, carrier=name, options=tuple(options.items()))
    return _paired(text, info, rest.split(",") if colon else [])


def _paired(text: str, info: ModeInfo, pieces: list[str]) -> ModeSpec:
    """A ModeSpec of two jobs. `pieces` are a carrier and options, as they stand after the colon."""
    name, carriers = info.name, [piece for piece in pieces if "=" not in piece]
    named = ",".join(carriers)
    given = ",".join(piece for piece in pieces if "=" in piece)
    options = parse_options(f"{name}:{given}")[1] if given else {}
    singles = [one.name for one in MODES if not one.paired and one.equivalent_to_ddp and one.carries_pairs]
    if carriers and named not in singles:
        raise unknown(f"carrier for {name}", named, singles, listing="xbench list modes")
    known_options(text, options, ())
    chosen = named or info.base_schedule
    if not carries(chosen, info):
        raise SpecError(
            f"{name} waits for a job's gradients before its next turn, and {chosen!r} waits for them in it",
            hint=f"write {name}:{info.base_schedule}",
        )
    return ModeSpec(text=f"{name}:{named}" if named else name, name=name, carrier=chosen, paired=True)


def carries(carrier: str, paired: ModeInfo) -> bool:
    """True if the single-job schedule `carrier` can send the gradients of a paired mode."""
    info = mode_info(carrier)
    fits = not info.paired and info.equivalent_to_ddp and info.carries_pairs
    return fits and not (paired.sharing == "in turns" and info.may_put_off)


def defers_update(carrier: str) -> bool:
    """True if the single-job mode of this name defers updates into the next forward pass."""
    return mode_info(carrier).puts_off


def cycle_of(mode: ModeSpec) -> int:
    """Number of steps after which the mode's steps repeat: 1 for most modes."""
    named = mode_info(mode.carrier).cycle
    if named is None:
        return 1
    steps: int = imported(named)(dict(mode.options))
    return steps


def obstacle(name: str) -> str | None:
    """The reason why the single-job mode of this name cannot run here, as half a sentence, or None."""
    named = MODES.entry(name).obstacle
    if named is None:
        return None
    why: str | None = imported(named)()
    return why


def parse_modes(text: str) -> tuple[ModeSpec, ...]:
    """Modes from a comma-separated list. `ddp@a` names a second copy of `ddp` (for A/A comparisons).

    A piece 'key=value' belongs to the mode before it: 'horovod:fusion=32,cycle=5,ddp' is two modes. Raises SpecError
    for an unknown mode, an empty list, or a duplicate mode.
    """
    modes: list[ModeSpec] = []
    for piece in entries(text):
        plain, at, alias = piece.partition("@")
        if not plain:
            raise SpecError(f"the list of modes {text!r} has an empty place", hint="write --modes ddp,auto")
        if at and not alias.isidentifier():
            raise SpecError(f"{piece!r}: the name after '@' must be letters and digits", hint=f"{plain}@b")
        mode = parse_mode(plain)
        if at:
            mode = mode.model_copy(update={"text": f"{mode.text}@{alias}"})
        if any(other.text == mode.text for other in modes):
            raise SpecError(f"mode {mode.text!r} stands twice", hint=f"name a second copy, as in {mode.text}@b")
        modes.append(mode)
    return tuple(modes)
