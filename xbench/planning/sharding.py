"""Options of torch's sharded modes, and what they need of the ranks. Nothing here imports torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from xbench.errors import SpecError
from xbench.field_types import MAX_COUNT
from xbench.spec import known_options, parse_int
from xbench.units import parse_bytes

GATHERED = "gathered"
"""Option: the most bytes of a unit of several blocks."""

GROUP = "group"
"""Option: the ranks that divide one copy of the parameters among themselves."""


def options(text: str, given: dict[str, str]) -> dict[str, str]:
    """The checked options of the mode `text`: group=2 and above. Raises SpecError."""
    known_options(text, given, (GROUP,))
    return {GROUP: str(parse_int(text, GROUP, given[GROUP], 2, MAX_COUNT))} if GROUP in given else {}


def unit_options(text: str, given: dict[str, str]) -> dict[str, str]:
    """The checked options of a mode of planned units: gathered=64MiB, of at least a byte. Raises SpecError."""
    known_options(text, given, (GATHERED,))
    if GATHERED in given and parse_bytes(given[GATHERED]) < 1:
        raise SpecError(f"{text!r}: a unit of {given[GATHERED]} has no parameters", hint=f"try {GATHERED}=64MiB")
    return given


def shard_ranks(text: str, options: Mapping[str, str], world_size: int, ranks_per_host: int) -> int:
    """The ranks that divide one copy of the parameters: those of the option, else those of a host.

    Where a host has one rank or all, it is the largest number that leaves at least two copies. Raises SpecError where
    `world_size` ranks are no such groups.
    """
    fitting = [ranks for ranks in range(2, world_size) if world_size % ranks == 0]
    if not fitting:
        raise SpecError(
            f"mode {text!r} needs two or more groups of two or more ranks, and {world_size} ranks are not",
            hint="try --fabric local:ranks=4",
        )
    asked = int(options[GROUP]) if GROUP in options else None
    if asked is not None and asked not in fitting:
        raise SpecError(
            f"mode {text!r}: {world_size} ranks are not two or more groups of {asked}",
            hint=f"try {GROUP}={min(fitting, key=lambda ranks: abs(ranks - asked))}",
        )
    return asked or (ranks_per_host if ranks_per_host in fitting else fitting[-1])


def cost_name(collective: str, ranks: int | None) -> str:
    """The name of a collective's cost: 'all_gather', or 'all_gather:group=2' if the ranks are in groups of two.

    An all-reduce between groups has the size of the groups in its name too: 'all_reduce:group=2'.
    """
    return collective if ranks is None else f"{collective}:{GROUP}={ranks}"


def replicate_obstacle() -> str | None:
    """Reason why the installed torch has no `replicate` on FSDP2, as half a sentence, or None."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return "torch is not installed"
    if (Path(found.origin).parent / "distributed" / "_composable" / "replicate_with_fsdp.py").exists():
        return None
    return "this torch has no torch.distributed._composable.replicate_with_fsdp"
