"""Whether Horovod is installed, and fits the torch that is: found out without importing either.

Horovod's extension holds torch's C++ symbols, so one that was built against another torch fails to load, with the name
of a symbol that nobody knows. Its wheel says what it was built against, in `horovod/metadata.json`.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from xbench.environment import version_of

VERSION = "0.28.1"
LOCAL_VERSION = "xbench"
"""After the version's '+': one that `xbench.horovod.build` has built."""

INSTALL = "make horovod"


def folder() -> Path | None:
    """Where the package is installed, or None. A folder that happens to be called horovod is none."""
    found = importlib.util.find_spec("horovod")
    return Path(found.origin).parent if found is not None and found.origin is not None else None


def version() -> str | None:
    """Of the Horovod that is installed, or None."""
    return version_of("horovod") if folder() is not None else None


def ours() -> bool:
    """Whether it is one that `xbench.horovod.build` built, which can be initialised again with other settings."""
    return (version() or "").partition("+")[2] == LOCAL_VERSION


def built_against() -> str | None:
    """The torch that the installed Horovod was built against, without '+cu130'; None where it does not say."""
    place = folder()
    try:
        text = (place / "metadata.json").read_text(encoding="utf-8") if place is not None else ""
    except OSError:
        return None
    # Not json: what CMake appends ends with a comma.
    said = re.search(r'"pytorch":\s*"([^"+]+)', text)
    return said[1] if said else None


def obstacle() -> str | None:
    """Why Horovod cannot be used here, in half a sentence, or None. `INSTALL` mends it either way."""
    if folder() is None:
        return "Horovod is not installed"
    built, here = built_against(), (version_of("torch") or "").partition("+")[0]
    if built is not None and here and built != here:
        return mismatch(built, here)
    return None


def mismatch(built: str | None, here: str) -> str:
    """The half sentence for a Horovod of another torch."""
    return f"Horovod was built against {f'torch {built}' if built else 'another torch'}, and torch {here} is installed"
