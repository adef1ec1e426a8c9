"""Short profiles for what these tests start, which judge no prediction; `make test-all` measures whole ones."""

from __future__ import annotations

import os

from cores import one_thread
from shares import ALL

one_thread()
if not ALL:
    os.environ.setdefault("XBENCH_PROFILE_SHARE", "0.1")
