"""Horovod as a rival: whether it can be used here, its options, and its one world in a process.

Horovod (Sergeev and Del Balso, arXiv 1802.05799) averages gradients in its own thread. Hooks submit tensors by name.
Every cycle (1 ms) the ranks announce which they have; those that all ranks have are packed into one buffer (128 MiB at
most: tensor fusion) and sent together.

Here is checked that Horovod is installed and fits the installed torch, without importing either. Horovod's extension
contains torch's C++ symbols. If it was built against another torch, it fails to load with the name of an obscure
symbol. `horovod/metadata.json` in its wheel tells what it was built against.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from xbench.environment import version_of

LOCAL_VERSION = "xbench"
"""Suffix of the version, after '+', of a build by `make horovod`."""

INSTALL = "make horovod in a checkout of xbench"
"""What builds it, as the subject of a sentence."""


def folder() -> Path | None:
    """Folder of the installed package, or None. A folder that happens to be called horovod is not one."""
    spec = importlib.util.find_spec("horovod")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def version() -> str | None:
    """Version of the installed Horovod, or None."""
    return version_of("horovod") if folder() is not None else None


def is_own_build() -> bool:
    """True for a build by `make horovod`, which can be initialised again with other settings."""
    return (version() or "").partition("+")[2] == LOCAL_VERSION


def built_against() -> str | None:
    """The torch that the installed Horovod was built against, without '+cu130'; None if unknown."""
    package = folder()
    try:
        text = (package / "metadata.json").read_text(encoding="utf-8") if package is not None else ""
    except OSError:
        return None
    # Not JSON: the part that CMake appends ends with a comma.
    match = re.search(r'"pytorch":\s*"([^"+]+)', text)
    return match[1] if match else None


def obstacle() -> str | None:
    """Reason why Horovod cannot be used here, as half a sentence, or None. `INSTALL` fixes it in either case."""
    if folder() is None:
        return "Horovod is not installed"
    built, installed = built_against(), (version_of("torch") or "").partition("+")[0]
    if built is not None and installed and built != installed:
        return mismatch(built, installed)
    return None


def mismatch(built: str | None, installed: str) -> str:
    """Half a sentence for a Horovod built against another torch."""
    torch = f"torch {built}" if built else "another torch"
    return f"Horovod was built against {torch}, and torch {installed} is installed"
