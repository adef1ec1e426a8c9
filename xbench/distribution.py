"""The source of this xbench and of other packages, and the command that adds some. xbench is on no package index.

Uses the standard library alone.
"""

from __future__ import annotations

import json
import re
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

NAME = "xbench-schedules"
_OF_EXTRA = re.compile(r"""(?P<package>[^;]+);.*\bextra\s*==\s*["'](?P<extra>[\w-]+)["']""")


def install_extra(extra: str) -> str:
    """Return the command that installs the packages of one extra of this distribution: "pip install 'timm>=1.0.20'".

    Without metadata this xbench runs from a checkout, which the command then names.
    """
    try:
        lines = distribution(NAME).requires or []
    except PackageNotFoundError:
        lines = []
    found = [match for match in map(_OF_EXTRA.match, lines) if match is not None and match["extra"] == extra]
    packages = " ".join(repr(match["package"].strip()) for match in found)
    return f"pip install {packages}" if packages else f"pip install -e '{_folder()}[{extra}]'"


def source() -> dict[str, Any]:
    """Return where this xbench came from, in the form of PEP 610: `url`, and `dir_info`, `vcs_info` or `archive_info`.

    Code that runs from a checkout came from this checkout. Empty for a package that an index served.
    """
    if (_folder() / "pyproject.toml").is_file():
        return {"url": _folder().as_uri(), "dir_info": {}}
    try:
        found = json.loads(distribution(NAME).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def local_path(url: str) -> Path | None:
    """Return the path of a file: URL; None for another kind."""
    parts = urlsplit(url)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


def version_of(package: str) -> str | None:
    """The version of an installed package; None where there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _folder() -> Path:
    return Path(__file__).resolve().parents[1]
