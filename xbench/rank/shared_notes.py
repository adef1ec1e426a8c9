"""Where the ranks of all jobs leave each other notes: plans, and which modes were refused.

Under our own launcher that is the launch's folder, which every host here reads and the parent reads afterwards. Ranks
that somebody else started need not share a disk, so theirs is the store at which they met.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol


class KeyValueStore(Protocol):
    """Notes by name. Whoever reads one knows, by a barrier, that it was put up."""

    def put(self, name: str, text: str) -> None:
        """Leave a note, in place of an older one of that name."""

    def get(self, name: str) -> str:
        """Read a note."""

    def has(self, name: str) -> bool:
        """Whether there is such a note."""


class FileStore:
    """A file a note."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, text: str) -> None:
        """See `KeyValueStore`; it appears as a whole, also where several ranks put it at once."""
        part = self._folder / f".{name}.{os.getpid()}.part"
        part.write_text(text)
        part.replace(self._folder / name)

    def get(self, name: str) -> str:
        """See `KeyValueStore`. Raises OSError."""
        return (self._folder / name).read_text()

    def has(self, name: str) -> bool:
        """See `KeyValueStore`."""
        return (self._folder / name).exists()


class TorchStore:
    """A key a note, in a torch.distributed store."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def put(self, name: str, text: str) -> None:
        """See `KeyValueStore`."""
        self._store.set(f"board/{name}", text)

    def get(self, name: str) -> str:
        """See `KeyValueStore`. Raises RuntimeError when the store is gone."""
        return bytes(self._store.get(f"board/{name}")).decode()

    def has(self, name: str) -> bool:
        """See `KeyValueStore`."""
        return bool(self._store.check([f"board/{name}"]))
