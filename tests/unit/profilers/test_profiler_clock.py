import dataclasses

import pytest
import torch

from xbench.errors import SpecError
from xbench.profilers import share
from xbench.profilers.clock import CudaClock, HostClock, clock_for


def test_host_clock_converts_nanoseconds_and_does_not_run_backwards():
    clock = HostClock()
    assert clock.elapsed_s(1_000_000_000, 3_500_000_000) == 2.5
    first, second = clock.mark(), clock.mark()
    clock.flush()
    assert clock.elapsed_s(first, second) >= 0
    clock.reset()


def test_clock_for_each_device():
    assert isinstance(clock_for("cpu"), HostClock)
    assert isinstance(clock_for(torch.device("cuda", 0)), CudaClock)
    with pytest.raises(SpecError, match="'meta' has no clock"):
        clock_for("meta")


class FakeEvent:
    made = 0

    def __init__(self, enable_timing=False):
        assert enable_timing
        type(self).made += 1
        self.synchronized = 0

    def record(self, stream):
        self.stream = stream

    def synchronize(self):
        self.synchronized += 1

    def elapsed_time(self, other):
        return 250.0


@dataclasses.dataclass
class FakeStream:
    device: torch.device
    cuda_stream: int = 0


@pytest.fixture
def events(monkeypatch):
    FakeEvent.made = 0
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", FakeStream)


def test_cuda_clock_uses_events_again(events):
    clock = CudaClock(torch.device("cuda", 1))
    clock.flush()  # nothing to wait for yet
    first, middle, last = clock.mark(), clock.mark(), clock.mark()
    assert first.stream == FakeStream(torch.device("cuda", 1))
    clock.flush()
    assert clock.elapsed_s(first, last) == 0.25
    clock.reset()
    again = {id(clock.mark()) for _ in range(3)}
    assert again == {id(first), id(middle), id(last)}
    assert FakeEvent.made == 3
    clock.mark()
    assert FakeEvent.made == 4


def test_cuda_clock_marks_when_another_thread_has_taken_the_last_event(events):
    class Emptied(list):
        """A pool that was not empty a moment ago."""

        def __bool__(self):
            return True

    clock = CudaClock(torch.device("cuda", 0))
    clock._free = Emptied()
    assert clock.mark().stream == FakeStream(torch.device("cuda", 0))


def test_cuda_clock_waits_for_the_last_mark_on_every_stream_and_only_when_flushed(events, monkeypatch):
    streams = iter([7, 8, 7, 8, 9])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream(device, next(streams)))
    clock = CudaClock(torch.device("cuda", 0))
    marks = [clock.mark() for _ in range(5)]
    assert [mark.synchronized for mark in marks] == [0, 0, 0, 0, 0]
    for forget in (lambda: None, lambda: None, clock.reset):  # nothing comes after the first flush
        forget()
        clock.flush()
        assert [mark.synchronized for mark in marks] == [0, 0, 1, 1, 1]


def test_the_share_of_the_budgets_is_a_number_up_to_one() -> None:
    assert share({}) == share({"XBENCH_PROFILE_SHARE": ""}) == 1.0
    assert share({"XBENCH_PROFILE_SHARE": "0.1"}) == 0.1
    for wrong in ("0", "-1", "1.5", "nan", "inf", "a tenth"):
        with pytest.raises(SpecError, match="must be above 0 and at most 1"):
            share({"XBENCH_PROFILE_SHARE": wrong})
