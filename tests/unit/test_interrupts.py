"""Signals that ask to stop: they end the measuring at once, and wait while something is saved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from xbench.errors import Interrupted
from xbench.interrupts import DeferredSignals, interrupts_held, stop_signals_interrupt

pytestmark = pytest.mark.usefixtures("hangs_up")

STOPS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def send(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_while_saving_waits_and_is_an_error_afterwards(number: signal.Signals) -> None:
    saved = False
    with interrupts_held() as held:
        send(number)
        saved = True
        error = held.interrupted()
    assert saved
    assert isinstance(error, Interrupted)
    assert error.exit_code == 130


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_that_nobody_asked_for_interrupts_after_the_save(number: signal.Signals) -> None:
    saved = []

    def save() -> None:
        with interrupts_held():
            send(number)
            saved.append(True)

    with pytest.raises(KeyboardInterrupt):
        save()
    assert saved


@pytest.mark.parametrize("number", STOPS)
def test_the_first_signal_ends_the_measuring_and_the_others_wait(number: signal.Signals) -> None:
    steps = []
    with interrupts_held() as held:
        try:
            with held.let_through():
                steps.append("measuring")
                send(number)
                steps.append("never")
        except KeyboardInterrupt:
            send(*STOPS, number)  # impatience
            steps.append("saved")
        assert held.interrupted() is not None
    assert steps == ["measuring", "saved"]


def test_a_signal_that_waits_ends_the_measuring_before_it_begins() -> None:
    with interrupts_held() as held:
        send(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt), held.let_through():
            pytest.fail("measured")
        assert held.interrupted() is not None


def test_what_comes_inside_an_inner_hold_ends_the_measuring_after_it() -> None:
    steps = []

    def measure(held: DeferredSignals) -> None:
        with held.let_through():
            with interrupts_held():
                send(signal.SIGINT)
                steps.append("cleaned up")
            steps.append("never")

    with interrupts_held() as held:
        with pytest.raises(KeyboardInterrupt):
            measure(held)
        with interrupts_held():  # another clean-up, while the outer one holds
            send(signal.SIGINT)
        steps.append("saved")
        assert held.interrupted() is not None
    assert steps == ["cleaned up", "saved"]


def test_an_error_inside_an_inner_hold_loses_no_signal() -> None:
    def save() -> None:
        with interrupts_held():
            send(signal.SIGHUP)
            raise OSError("full")

    with interrupts_held() as held:
        with pytest.raises(OSError, match="full"):
            save()
        assert held.interrupted() is not None


def test_a_fabric_inside_leaves_signals_that_are_held_alone() -> None:
    with interrupts_held() as held:
        with stop_signals_interrupt():
            send(signal.SIGTERM)
        assert held.interrupted() is not None


def test_handlers_are_as_they_were() -> None:
    before = [signal.getsignal(number) for number in STOPS]
    with interrupts_held() as held, held.let_through():
        pass
    assert [signal.getsignal(number) for number in STOPS] == before


@pytest.mark.parametrize("number", STOPS)
def test_every_command_ends_as_by_ctrl_c(number: signal.Signals) -> None:
    body = (
        "import os, sys, time, click, xbench.commands.env as module\n"
        f"stopped = lambda: (os.kill(os.getpid(), {int(number)}), time.sleep(9))\n"
        "module.clean = click.Command('clean', callback=stopped)\n"
        "from xbench.__main__ import run\nsys.argv = ['xbench', 'clean']\nrun()\n"
    )
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "error: interrupted")


def test_an_interrupt_inside_an_extension_module_leaves_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "inside.py").write_text(
        "import atexit, ctypes, sys, click, xbench.commands.env as module\n"
        "from xbench.__main__ import run\n"
        "inside = ctypes.pythonapi.PyRun_String\n"
        "inside.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.py_object, ctypes.py_object]\n"
        "inside.restype = ctypes.py_object\n"
        "interrupted = lambda: inside(b'raise KeyboardInterrupt', 257, {}, {})\n"
        "module.clean = click.Command('clean', callback=interrupted)\n"
        "atexit.register(print, 'closed')\n"
        "sys.argv = ['xbench', 'clean']\n"
        "run()\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-m", "inside"], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "closed\n", "error: interrupted")


def test_a_signal_at_the_very_end_leaves_the_exit_code() -> None:
    body = (
        "import atexit, os, signal, sys\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "from xbench.__main__ import run\nsys.argv = ['xbench', '--version']\nrun()\n"
    )
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
