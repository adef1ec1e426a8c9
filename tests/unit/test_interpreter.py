"""The processes that xbench starts use the same xbench."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from xbench import __main__

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("first", "shared"), [(str(ROOT), True), (str(ROOT / "tests"), False), ("/usr/bin", False)])
def test_they_find_it_where_python_m_did(first: str, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [first, *sys.path])
    monkeypatch.setenv("PYTHONPATH", "/other")
    __main__._share_with_children()
    assert os.environ["PYTHONPATH"].split(os.pathsep) == ([str(ROOT)] if shared else []) + ["/other"]


CHILDREN = """
import multiprocessing, os, signal, sys, time
from xbench.interpreter import end_children


def wait(deaf, ready):
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.set()
    time.sleep(600)


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    for deaf in (False, True):
        ready = context.Event()
        child = context.Process(target=wait, args=(deaf, ready))
        child.start()
        ready.wait()
        print(child.pid)
    end_children()
    print(len(multiprocessing.active_children()), flush=True)
    os._exit(0)
"""


def test_a_rank_that_leaves_at_once_ends_its_loaders_workers(tmp_path: Path) -> None:
    (tmp_path / "children.py").write_text(CHILDREN)
    done = subprocess.run([sys.executable, str(tmp_path / "children.py")], capture_output=True, text=True, timeout=60)
    first, second, left = map(int, done.stdout.split())
    assert (left, done.returncode) == (0, 0), done.stderr
    assert not any(psutil.pid_exists(pid) for pid in (first, second))


FORK = """\
import gc, os
from xbench.interpreter import keep_garbage_from_children
from xbench.workloads.batches import Loader
class Tensor:
    def __del__(self):
        if os.getpid() != parent:
            os.abort()  # as a tensor on a GPU does
parent = os.getpid()
{call}
inherited = Tensor()
inherited.itself = inherited
del inherited
if child := os.fork():
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    gc.collect()
    os._exit(0)
"""


@pytest.mark.parametrize(
    ("call", "status"), [("keep_garbage_from_children()", "0"), ("Loader('made', [])", "0"), ("", "-6")]
)
def test_a_child_does_not_free_what_its_parent_left(call: str, status: str) -> None:
    done = subprocess.run([sys.executable, "-c", FORK.format(call=call)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == status
