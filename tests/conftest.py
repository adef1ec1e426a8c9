"""Effort of the tests, and the examples of property tests.

Property tests draw the same examples every time, a quarter of them unless `XBENCH_TEST_ALL=1` asks for all, as
`make test-all` does. Those whose examples are expensive draw `few` or `fewest`. `HYPOTHESIS_PROFILE=explore make test`
draws anew. No profile has a deadline: no test judges a time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cores import one_core
from hypothesis import Phase, settings
from packages_at_hand import installed

THOROUGH = os.environ.get("XBENCH_TEST_ALL") == "1"

# `XBENCH_TEST_SHRINK=0` does not look for a smaller failure than the first, as `tests/mutants.py` asks.
PHASES = set(Phase) - ({Phase.shrink, Phase.explain} if os.environ.get("XBENCH_TEST_SHRINK") == "0" else set())

settings.register_profile(
    "repeatable", phases=PHASES, max_examples=100 if THOROUGH else 25, derandomize=True, deadline=None
)
settings.register_profile("few", phases=PHASES, max_examples=40 if THOROUGH else 10, derandomize=True, deadline=None)
settings.register_profile("fewest", phases=PHASES, max_examples=15 if THOROUGH else 5, derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# What these tests start keeps the bytecode of xbench, or each of hundreds of processes would compile it anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell without job control starts what it puts into the background with Ctrl-C ignored, and ranks would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def thorough() -> bool:
    """True if a test is to try every case, and not only the most telling one."""
    return THOROUGH


@pytest.fixture(scope="session")
def with_pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which `tests/packages/xbench_pairs`, which adds the mode `pairs`, is installed."""
    return installed(tmp_path_factory.mktemp("site"), "xbench_pairs", {"pairs": "xbench_pairs:PAIRS"})


@pytest.fixture
def on_one_core() -> Iterator[None]:
    """Give one core to what the test starts, see `cores`."""
    with one_core():
        yield


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder for temporary files of what a test starts, without those of tests beside it."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def hangs_up() -> Iterator[None]:
    """SIGHUP is not ignored, here and in children: under `nohup make test` it would be."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
