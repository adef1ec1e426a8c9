"""Registries of names: workloads, fabrics, policies, report formats, and the table of modes (`modes`).

An entry names its target as 'module:attribute' and is imported only on use, so listing names never imports torch. Other
packages add entries through the entry-point group that a registry names.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from xbench.errors import unknown

E = TypeVar("E")
T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """One registered name: its target, one line for `--help`, and facts that need no import."""

    name: str
    target: str
    summary: str
    facts: dict[str, Any] = field(default_factory=dict)


class Table(ABC, Generic[E]):
    """Ordered entries by name. Those of other packages come last, and are read on first use."""

    def __init__(self, kind: str, *, listing: str, group: str | None = None) -> None:
        self.kind = kind
        self.listing = listing
        self.group = group
        self._entries: dict[str, E] = {}
        self._scanned = False

    @abstractmethod
    def _read(self, point: EntryPoint) -> E | None:
        """Return the entry of another package, or None if it cannot be used."""

    def _all(self) -> dict[str, E]:
        if self.group is not None and not self._scanned:
            self._scanned = True
            for point in entry_points(group=self.group):
                if point.name not in self._entries and (entry := self._read(point)) is not None:
                    self._entries[point.name] = entry
        return self._entries

    def __contains__(self, name: str) -> bool:
        return name in self._all()

    def __iter__(self) -> Iterator[E]:
        return iter(self._all().values())

    def names(self) -> list[str]:
        """All names, in order."""
        return list(self._all())

    def entry(self, name: str) -> E:
        """The entry of that name. Raises SpecError with the nearest name."""
        if name not in self:
            raise unknown(self.kind, name, self._all(), listing=self.listing)
        return self._all()[name]


class Registry(Table[Entry], Generic[T]):
    """Entries of one kind. `T` is what `load` returns."""

    def add(self, name: str, target: str, summary: str, **facts: Any) -> None:
        """Register `name`; a second registration of the same name is a programming error."""
        if name in self._entries:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._entries[name] = Entry(name, target, summary, facts)

    def load(self, name: str) -> T:
        """Import and return the entry's target. Raises SpecError for an unknown name."""
        loaded: T = imported(self.entry(name).target)
        return loaded

    def _read(self, point: EntryPoint) -> Entry:
        return Entry(point.name, point.value, f"from {point.value}")


def imported(target: str) -> Any:
    """Return the object that 'module:attribute' names."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
