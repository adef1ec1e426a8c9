"""The launcher with real ranks on real shaped links: it ends, says the first cause, and leaves nothing."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from typed_commands import wait_until_gone

from xbench.errors import RankError
from xbench.fabrics import links, open_fabric, parse_fabric, shaped, stale
from xbench.launch.launcher import launch
from xbench.rank.journal import pid_alive

RANKS = Path(__file__).parent / "ranks"
pytestmark = [
    pytest.mark.integration,
    pytest.mark.netns,
    pytest.mark.skipif(shaped.obstacle() is not None, reason=f"shaped links: {shaped.obstacle()}"),
]


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(RANKS))


@pytest.fixture(scope="module")
def fabric():
    with open_fabric(parse_fabric("shaped:hosts=2,rate=1gbit")) as raised:
        yield raised


class Run:
    """One launch of `launched_rank` with a plan; keeps its events."""

    def __init__(self, fabric, folder, *, jobs=1, on_event=None, **plan):
        argument = folder / "plan.json"
        argument.write_text(json.dumps(plan))
        self.before = children()
        self.events = []

        def keep(job, rank, event):
            self.events.append((job, rank, event))
            if on_event is not None:
                on_event(job, rank, event)

        self.outcome = launch(fabric, jobs, "launched_rank", argument, folder, on_event=keep, silence_s=60.0)
        self.error = self.outcome.error
        self.pids = [event.pid for _, _, event in self.events if event.event == "hello"]

    def left(self):
        """Processes that outlived the launch."""
        return [pid for pid in self.pids if pid_alive(pid)] + sorted(children() - self.before)


def children():
    return {child.pid for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE}


def test_two_jobs_end_well_each_rank_on_its_own_core(fabric, tmp_path):
    run = Run(fabric, tmp_path, jobs=2, steps=3)
    assert run.error is None, run.error.detail
    assert run.outcome.warnings == []
    seen = {(job, rank): json.loads(event.message) for job, rank, event in run.events if event.event == "remark"}
    assert set(seen) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    for (_, rank), said in seen.items():
        cores = list(fabric.hosts[rank].cores[0])
        assert said == [2000.0, cores, str(len(cores))]  # a thousand ones of either rank
    events = [event.event for job, rank, event in run.events if (job, rank) == (1, 1)]
    assert events == ["hello", "phase", "remark", "end"]
    assert run.left() == []


def test_a_rank_that_raises_is_named_with_what_it_said(fabric, tmp_path):
    run = Run(fabric, tmp_path, steps=50, trouble="raise", rank=1, at=2)
    assert isinstance(run.error, RankError)
    assert str(run.error) == "rank 1 on host 1 (step 2: computing) raised RuntimeError: out of luck"
    assert "in main" in run.error.detail
    assert run.left() == []


def test_a_rank_that_never_says_hello_is_explained_by_its_log(fabric, tmp_path):
    run = Run(fabric, tmp_path, steps=1, trouble="before hello", rank=1)
    assert isinstance(run.error, RankError)
    assert str(run.error) == "rank 1 on host 1 did not start: ImportError: no module of that name"
    assert "Traceback" in run.error.detail
    assert run.left() == []


def test_an_error_in_the_parent_ends_the_ranks(fabric, tmp_path):
    def full(job, rank, event):
        raise OSError(28, "No space left on device")

    before = children()
    with pytest.raises(OSError, match="No space left"):
        Run(fabric, tmp_path, steps=100000, pause_s=0.01, on_event=full)
    assert children() == before


PARENT = """
    import json, sys
    from pathlib import Path
    from xbench.fabrics import open_fabric, parse_fabric
    from xbench.launch.launcher import launch

    folder = Path(sys.argv[1])
    (folder / "plan.json").write_text(json.dumps({"steps": 1000000, "pause_s": 0.01}))
    with open_fabric(parse_fabric("shaped:hosts=2,rate=1gbit"), sys.argv[2]) as fabric:
        tell = lambda job, rank, event: print(event.event, flush=True)
        launch(fabric, 1, "launched_rank", folder / "plan.json", folder, on_event=tell, silence_s=60.0)
"""


def test_a_killed_parent_takes_its_ranks_along_and_clean_removes_the_rest(tmp_path):
    def namespaces():
        return [name for name in links.list_namespaces() if name.startswith("xbc0ffe2-")]

    words = [sys.executable, "-c", textwrap.dedent(PARENT), str(tmp_path), "c0ffe2"]
    parent = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    hellos = 0
    while hellos < 2:
        hellos += parent.stdout.readline() == "hello\n"
    started = [child.pid for child in psutil.Process(parent.pid).children(recursive=True)]
    assert not set(stale.clean().removed) & set(namespaces())  # a live run is left alone
    assert len(namespaces()) == 3
    parent.kill()
    parent.wait()
    assert len(started) >= 4
    assert wait_until_gone(started)
    done = subprocess.run([sys.executable, "-m", "xbench", "clean"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "removed xbc0ffe2-0" in done.stderr
    assert namespaces() == []
