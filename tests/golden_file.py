"""Comparison with the files under tests/golden.

`XBENCH_UPDATE_GOLDEN=1 pytest tests/unit/cluster` rewrites those of that folder: read the difference before you commit.
"""

from __future__ import annotations

import os
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str, text: str) -> None:
    """Fail unless the golden file of this name holds this text."""
    path = GOLDEN / name
    if os.environ.get("XBENCH_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
