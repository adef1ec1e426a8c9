"""Short profiles for what these tests start, which judge no prediction; `make test-all` measures whole ones.

Ranks and probes are forked from a process that has torch already (`tests/warm`), but for smoke tests, for files that
are about processes themselves or use Horovod (COLD), and with `make test-all`: there each imports it, as it does for
users.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cores import one_thread
from shares import ALL

from xbench.launch_guard import GUARD

one_thread()
if not ALL:
    os.environ.setdefault("XBENCH_PROFILE_SHARE", "0.1")

WARM = Path(__file__).parents[1] / "warm"
PLACE = "XBENCH_TEST_WARM"
COLD = {
    f"test_{name}.py"
    for name in (
        "compiled_modes", "disturbed_runs", "failed_runs", "horovod", "host", "killed_runs", "launch", "races", "turns",
        "wheel",
    )
}  # fmt: skip
os.environ["PYTHONPATH"] = os.pathsep.join([str(WARM), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="session")
def warm_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Socket of a server of processes that have torch."""
    place = str(tmp_path_factory.mktemp("warm") / "s")
    words = [*GUARD, str(os.getpid()), sys.executable, str(WARM / "warm_server.py"), place]
    server = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    while not Path(place).exists() and server.poll() is None:
        time.sleep(0.01)
    yield place
    server.kill()
    server.wait()


@pytest.fixture(autouse=True, scope="module")
def warm(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fork ranks and probes of this file's tests, unless it is to start them cold."""
    cold = request.path.name in COLD or request.config.option.markexpr == "smoke"
    if (ALL and request.path.name != "test_warm.py") or cold or not hasattr(os, "pidfd_open"):
        yield
        return
    os.environ[PLACE] = request.getfixturevalue("warm_place")
    yield
    del os.environ[PLACE]
