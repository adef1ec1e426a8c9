"""xbench with a slow save: `python slow_save.py FLAG COMMAND…` makes FLAG when a record is about to get its name.

The record then takes HOLD_S to appear, so that a signal can be aimed at the save. Everything goes through os.replace,
which every atomic write ends with.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

HOLD_S = 2.0


def main() -> None:
    """Run xbench as `python -m xbench` does."""
    flag = Path(sys.argv.pop(1))
    replace = os.replace

    def slow(source: Any, target: Any, **how: Any) -> None:
        if Path(os.fsdecode(target)).name == "record.json":
            flag.touch()
            deadline = time.monotonic() + HOLD_S
            while (left := deadline - time.monotonic()) > 0:
                time.sleep(left)
        replace(source, target, **how)

    os.replace = slow  # type: ignore[assignment]
    from xbench.__main__ import run

    run()


if __name__ == "__main__":
    main()
