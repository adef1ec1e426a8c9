"""The client and the arbiter's socket handling, over a real socket inside one process."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from xbench.errors import RunError
from xbench.turns.arbiter import Arbiter, main
from xbench.turns.client import TurnClient

WAIT_S = 30.0
ROOT = Path(__file__).parents[3]


@pytest.fixture
def path(tmp_path, monkeypatch):
    """The path of an arbiter of 2 jobs and 2 devices: a short one, whatever pytest calls its directories."""
    monkeypatch.chdir(tmp_path)
    lifeline, hold = os.pipe()
    with contextlib.closing(Arbiter(Path("arbiter"), jobs=2, devices=2)) as arbiter:
        arbiter.stop_at_end_of(lifeline)
        thread = threading.Thread(target=arbiter.serve, daemon=True)
        thread.start()
        yield Path("arbiter")
        os.close(hold)
        thread.join(WAIT_S)
        assert not thread.is_alive()
    os.close(lifeline)


def together(*calls):
    """Run blocking calls at once; their results in order. An error of one is raised."""
    results: list[object] = [None] * len(calls)

    def run(index, call):
        try:
            results[index] = call()
        except RunError as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    for result in results:
        if isinstance(result, RunError):
            raise result
    return results


def pair(path, device=0, **options):
    return [TurnClient(path, job, device, **{"timeout_s": WAIT_S} | options) for job in (0, 1)]


def playing(path):
    """Both jobs of device 0, in a block in which they alternate."""
    one, two = pair(path)
    together(lambda: one.begin(1, (0, 1)), lambda: two.begin(1, (0, 1)))
    return one, two


def test_turns_pass_in_the_order_of_the_pattern(path):
    clients, log = pair(path), []

    def job(me, steps):
        assert clients[me].begin("block", (0, 0, 1)) == {0, 1}
        for _ in range(steps):
            with clients[me].turn():
                log.append(me)
        clients[me].end_block()
        return clients[me].barrier("done")

    assert together(lambda: job(0, 5), lambda: job(1, 4)) == [{0, 1}, {0, 1}]
    assert log == [0, 0, 1, 0, 0, 1, 0, 1, 1]
    assert [client.turns for client in clients] == [5, 4]
    assert all(client.waited_s > 0 for client in clients)


def test_devices_have_turns_of_their_own(path):
    here, there = pair(path, 0), pair(path, 1)
    together(*(lambda c=c: c.begin(1, (0, 1)) for c in here + there))
    here[0].acquire()
    there[0].acquire()
    there[0].release()
    there[1].acquire()
    here[0].release()
    here[1].acquire()


def test_a_job_that_hangs_up_is_skipped_and_the_others_learn_of_it(path):
    one, two = playing(path)
    one.acquire()
    one.leave()
    two.acquire()
    two.release()
    two.end_block()
    assert two.begin(2, (0, 1)) == {1}


def test_an_error_inside_a_turn_passes_the_turn_on(path):
    one, two = playing(path)
    with pytest.raises(ZeroDivisionError), one.turn():
        raise ZeroDivisionError
    two.acquire()


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        ("acquire", (), "for its turn on device 0, held by job 0"),
        ("begin", (1, (0, 1)), "to begin block 1 on device 0, where job 0 has not come"),
        ("barrier", ("go",), "at barrier 'go' on device 0, where job 0 has not come"),
    ],
)
def test_a_wait_that_is_too_long_says_what_for_and_ends_the_membership(path, call, arguments, message):
    waiting, other = (TurnClient(path, job, 0, timeout_s=WAIT_S) for job in (1, 0))
    if call == "acquire":
        together(lambda: waiting.begin(1, (0, 1)), lambda: other.begin(1, (0, 1)))
        other.acquire()
    waiting.timeout_s = 0.05
    with pytest.raises(RunError) as error:
        getattr(waiting, call)(*arguments)
    assert str(error.value) == f"job 1 waited 0.05 s {message}"
    with pytest.raises(RunError, match=r"^job 1 has left device 0$"):
        waiting.acquire()
    waiting.end_block()
    if call != "acquire":
        assert other.begin(1, (0, 1)) == {0}


def test_misuse_raises_in_the_client_and_the_client_stays(path):
    one, two = pair(path)
    with pytest.raises(RunError, match=r"^job 0 releases device 0 without holding it$"):
        one.release()
    with pytest.raises(RunError, match=r"^job 0 ends a block on device 0 and is in none$"):
        one.end_block()
    with pytest.raises(RunError, match=r"^job 0 asks for device 0 outside a block$"):
        one.acquire()
    with pytest.raises(RunError, match=r"^the pattern \(0, 5\) names job 5: there are jobs 0 to 1$"):
        one.begin(1, (0, 5))
    assert together(lambda: one.begin(1, (0, 1)), lambda: two.begin(1, (0, 1))) == [{0, 1}, {0, 1}]
    with one.turn(), pytest.raises(RunError, match=r"^job 0 ends block 1 while holding device 0$"):
        one.end_block()
    two.acquire()


@pytest.mark.parametrize(
    ("job", "device", "message"),
    [
        (2, 0, "there is no job 2: device 0 has jobs 0 to 1"),
        (0, 2, "there is no device 2: the arbiter serves devices 0 to 1"),
        (0, -1, "there is no device -1: the arbiter serves devices 0 to 1"),
        (1, 0, "job 1 is connected to device 0 already"),
    ],
)
def test_who_does_not_belong_is_sent_away(path, job, device, message):
    with TurnClient(path, 1, 0):
        with pytest.raises(RunError) as error:
            TurnClient(path, job, device)
        assert str(error.value) == message


def test_there_is_no_way_back(path):
    keep = TurnClient(path, 0, 0)
    TurnClient(path, 1, 0).leave()
    assert keep.barrier("both") == {0}
    with pytest.raises(RunError, match=r"^job 1 has left device 0$"):
        TurnClient(path, 1, 0)


def speak(path, *lines):
    """All that the arbiter answers to raw lines until it hangs up."""
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(WAIT_S)
        raw.connect(str(path))
        answer = b""
        with contextlib.suppress(ConnectionError):  # cut off with a line half read
            for line in lines:
                raw.sendall(line)
            while data := raw.recv(4096):
                answer += data
    return answer


HELLO = b'h {"job": 1, "device": 0}\n'


@pytest.mark.parametrize(
    "line",
    [b"z\n", b"b\n", b'b {"block": 1}\n', b'b {"block": [], "pattern": [0]}\n', b'b {"block": 1, "pattern": ["0"]}\n',
     b"m 3\n", b"\n", b"\xff\xff\n", b"b {\n", b"b" + b"[" * 50000 + b"\n"],
)  # fmt: skip
def test_nonsense_is_answered_once_and_cut_off_and_the_others_go_on(path, line):
    keep = TurnClient(path, 0, 0, timeout_s=WAIT_S)
    answer = speak(path, HELLO, line).splitlines()
    assert answer[0] == b"k"
    assert json.loads(answer[1][1:]) == f"the arbiter does not understand {line[:-1][:40]!r}"
    assert keep.barrier("alone") == {0}


def test_a_stranger_is_cut_off(path):
    for line in (b"a\n", b"h\n", b'h {"job": "1", "device": 0}\n'):
        assert speak(path, line).startswith(b'e"the arbiter does not understand')


def test_a_line_without_end_is_cut_off(path):
    keep = TurnClient(path, 0, 0, timeout_s=WAIT_S)
    speak(path, HELLO, b"b" + b" " * 70000)
    assert keep.barrier("alone") == {0}


def test_a_release_without_holding_is_told_and_cut_off(path):
    assert speak(path, HELLO, b"r\n") == b'k\ne"job 1 releases device 0 without holding it"\n'


def test_an_arbiter_that_is_gone_is_said_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arbiter = Arbiter(Path("arbiter"), jobs=2, devices=1)
    thread = threading.Thread(target=arbiter.serve, daemon=True)
    thread.start()
    for client in playing("arbiter"):
        client.leave()
    thread.join(WAIT_S)
    arbiter.close()
    assert not Path("arbiter").exists()
    monkeypatch.setattr("xbench.turns.client.CONNECT_S", 0.0)
    with pytest.raises(RunError, match=r"^no turn arbiter listens at 'arbiter': No such file or directory$"):
        TurnClient("arbiter", 0, 0)


@contextlib.contextmanager
def arbiter_that(talks):
    """A socket 'arbiter' whose first connection `talks` serves on a thread."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("arbiter")
        listener.listen()

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"k\n")
                talks(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join(WAIT_S)


def test_a_lost_arbiter_raises_and_ends_the_membership(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with arbiter_that(lambda connection: connection.recv(100)):
        client = TurnClient("arbiter", 0, 0, timeout_s=WAIT_S)
        with pytest.raises(RunError, match=r"^job 0 on device 0 lost its turn arbiter$"):
            client.barrier("go")
    with pytest.raises(RunError, match=r"^job 0 has left device 0$"):
        client.barrier("go")


def test_an_arbiter_that_does_not_answer_is_told_apart_from_a_long_turn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("xbench.turns.client.WHY_S", 0.05)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("arbiter")
        listener.listen()
        with pytest.raises(RunError) as error:
            TurnClient("arbiter", 0, 0, timeout_s=0.05)
    assert str(error.value) == "job 0 waited 0.05 s to be greeted on device 0, and the arbiter does not answer"


def test_a_turn_that_is_granted_while_the_client_gives_up_is_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def late(connection):
        asked = b""
        while not asked.endswith(b"w\n"):
            asked += connection.recv(100)
        connection.sendall(b'g\nw"held by nobody"\n')
        connection.recv(100)

    with arbiter_that(late):
        client = TurnClient("arbiter", 0, 0, timeout_s=0.2)
        client.acquire()
        client.release()
        assert client.turns == 1
        client.leave()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--socket", "x" * 108, "--jobs", "2"], f"the socket path {'x' * 108!r} is longer than the 107 bytes that "
         "Unix allows"),
        (["--socket", "no/such/place", "--jobs", "2"], "the arbiter cannot listen at 'no/such/place': No such file or "
         "directory"),
        (["--socket", "arbiter", "--jobs", "0"], "turns for 0 jobs make no sense: at least 1 is needed"),
        (["--socket", "arbiter", "--jobs", "1", "--devices", "0"], "an arbiter of 0 devices makes no sense: at least 1 "
         "is needed"),
    ],
)  # fmt: skip
def test_an_arbiter_that_cannot_start_says_why(tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert main(options) == 1
    assert capsys.readouterr().err == message + "\n"
    assert not Path("arbiter").exists()


def test_a_client_refuses_a_path_that_cannot_be_a_socket():
    with pytest.raises(RunError, match="is longer than the 107 bytes that Unix allows"):
        TurnClient("x" * 108, 0, 0)


def test_arbiter_and_client_import_nothing_heavy():
    code = "import sys, xbench.turns.arbiter, xbench.turns.client; "
    code += "print(*sorted({name.partition('.')[0] for name in sys.modules} "
    code += "- sys.stdlib_module_names - {'xbench', '__main__'}))"
    loaded = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert loaded.stdout == "\n"
