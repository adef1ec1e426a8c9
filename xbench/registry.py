"""Registry of names: workloads, fabrics, policies, report formats. Modes have a table of their own (`modes`).

An entry names its target as 'module:attribute' and is imported only on use, so listing names never imports torch. Other
packages add entries through the entry-point group that a registry names.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from xbench.errors import unknown

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """One registered name: its target, one line for `--help`, and facts that need no import."""

    name: str
    target: str
    summary: str
    facts: dict[str, Any] = field(default_factory=dict)


class Registry(Generic[T]):
    """An ordered set of entries of one kind. `T` is what `load` returns."""

    def __init__(self, kind: str, *, listing: str, group: str | None = None) -> None:
        self.kind = kind
        self.listing = listing
        self.group = group
        self._entries: dict[str, Entry] = {}
        self._scanned = False

    def add(self, name: str, target: str, summary: str, **facts: Any) -> None:
        """Register `name`; a second registration of the same name is a programming error."""
        if name in self._entries:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._entries[name] = Entry(name, target, summary, facts)

    def _all(self) -> dict[str, Entry]:
        if self.group is not None and not self._scanned:
            self._scanned = True
            for point in entry_points(group=self.group):
                if point.name not in self._entries:
                    self._entries[point.name] = Entry(point.name, point.value, f"from {point.value}")
        return self._entries

    def __contains__(self, name: str) -> bool:
        return name in self._all()

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._all().values())

    def names(self) -> list[str]:
        """All names, in order of registration."""
        return list(self._all())

    def entry(self, name: str) -> Entry:
        """The entry of that name. Raises SpecError with the nearest name."""
        try:
            return self._all()[name]
        except KeyError:
            raise unknown(self.kind, name, self._all(), listing=self.listing) from None

    def load(self, name: str) -> T:
        """Import and return the entry's target. Raises SpecError for an unknown name."""
        loaded: T = imported(self.entry(name).target)
        return loaded


def imported(target: str) -> Any:
    """Return the object that 'module:attribute' names."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
