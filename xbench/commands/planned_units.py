"""Lines of torch for planned units, which `xbench plan --emit python` prints for a mode such as auto:shard."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from xbench.errors import SpecError
from xbench.option_fields import option_of
from xbench.text import and_of

FOLLOWED = ("emit", "mode")
"""Options of the command that these lines follow."""


def plans_units(text: str) -> bool:
    """True if a mode's units are planned, so that its lines are those of a comparison."""
    from xbench.modes import mode_info
    from xbench.schedules import parse_modes

    return all(mode_info(mode.name).plans_units for mode in parse_modes(text))


def units_lines(profile: Path, config: Any, mode: str, json_to: str | None) -> str:
    """Return the lines that wrap a mode's units as the comparison in `profile` did.

    `config`: the command's. Raises SpecError for a record without units, and for options that would change nothing.
    """
    from xbench.records import Comparison, load, of_kind
    from xbench.report import advice

    kind = type(config)
    default = kind(**{name: getattr(config, name) for name in FOLLOWED})
    names = [field.name for field in fields(config) if getattr(config, field.name) != getattr(default, field.name)]
    given = [option_of(kind, name).flags[0] for name in names] + (["--json"] if json_to is not None else [])
    if given:
        raise SpecError(
            f"{and_of(given)}: the units of {mode} are those that a comparison wrapped",
            hint=f"leave {and_of(given)} out, or compare under those conditions",
        )
    record = of_kind(load(profile), Comparison)
    result = record.modes.get(mode) if record is not None else None
    if record is None or result is None or not result.units:
        raise SpecError(
            f"--mode {mode}: {str(profile)!r} holds no units of it",
            hint=f"xbench compare WORKLOAD --modes ddp,{mode} plans them",
        )
    return advice.units_lines(record, result)
