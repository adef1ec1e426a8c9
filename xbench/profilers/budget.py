"""Share of a profile's time budgets that this process takes: all of them, except in tests.

Most of a short run is its profile. A test that judges no prediction sets XBENCH_PROFILE_SHARE to a tenth; every rank
must have the same. The measurements are then as many, and rougher.
"""

from __future__ import annotations

import os

SHARE = float(os.environ.get("XBENCH_PROFILE_SHARE", "1"))
"""Factor of every time budget [s]."""
