"""Short profiles for what these tests start, which judge no prediction.

`make test-all`, and a run of every case, measure whole ones.
"""

from __future__ import annotations

import os

from cores import one_thread
from shares import ALL

one_thread()
if not ALL and "XBENCH_FAULTS_OUTPUT" not in os.environ:
    os.environ.setdefault("XBENCH_PROFILE_SHARE", "0.1")
