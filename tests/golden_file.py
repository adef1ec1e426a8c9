"""Comparison with the files under tests/golden and tests/frozen.

`XBENCH_UPDATE_GOLDEN=1 pytest tests/unit/cluster` rewrites those of that folder: read the difference before you commit.
"""

from __future__ import annotations

import os
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"
FROZEN = Path(__file__).parent / "frozen"


def golden(name: str, text: str, folder: Path = GOLDEN) -> None:
    """Fail unless the golden file of this name holds this text."""
    path = folder / name
    if os.environ.get("XBENCH_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
