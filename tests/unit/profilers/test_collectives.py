import contextlib
import functools
import itertools
import types
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from profiler_fakes import FakeClock
from torch import Tensor

from xbench.profilers import collectives
from xbench.profilers.collectives import CALLS, ClockOffsets, common_time, measure_all_reduce, plan_repetitions, sizes
from xbench.profilers.summary import clocks, cost_points


@given(st.integers(1, 4 * 1024**3))
def test_sizes_span_the_gradient_log_spaced(total_bytes):
    found = sizes(total_bytes)
    assert found[0] == 1024
    assert found[-1] >= total_bytes
    assert found[-1] - max(total_bytes, 64 * 1024) < 4
    assert 2 <= len(found) <= 24
    assert all(size % 4 == 0 for size in found)
    steps = [after / before for before, after in itertools.pairwise(found)]
    assert min(steps) > 1
    assert max(steps) / min(steps) < 1.02


def test_sizes_are_two_an_octave_while_there_is_room():
    assert sizes(4096) == sizes(65536)
    assert sizes(65536)[::2] == [1024, 2048, 4096, 8192, 16384, 32768, 65536]
    assert len(sizes(45_000_000)) == 24


def test_no_gradient_has_no_sizes():
    with pytest.raises(ValueError, match="nothing to reduce"):
        sizes(0)


@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=24), st.integers(1, 40), st.floats(0.01, 60))
def test_repetitions_keep_the_budget_or_their_floor(durations_s, most, budget_s):
    counts = plan_repetitions(durations_s, most=most, seconds_budget=budget_s)
    floor = min(counts)
    assert min(2, most) <= floor
    assert max(counts) <= most
    once_s = sum(durations_s)
    if 6 * once_s <= 2 * budget_s:
        assert floor >= min(5, most)
    total_s = once_s + sum(count * duration for count, duration in zip(counts, durations_s, strict=True))
    parts_s = 0.01 * budget_s * len(durations_s)
    assert total_s <= (max(budget_s, (1 + min(5, floor)) * once_s) + parts_s) * (1 + 1e-9)


def test_small_sizes_are_repeated_more():
    # 0.5 + 0.25 + 0.25 s once: six times is 6 s, and 4 s are left, two for each.
    assert plan_repetitions([0.5, 0.25], most=30, seconds_budget=0.75 * 6 + 4) == [5 + 4, 5 + 8]
    assert plan_repetitions([1e-4, 1.0], most=30, seconds_budget=5.0) == [30, 5]
    assert plan_repetitions([1e-4, 100.0], most=30, seconds_budget=5.0) == [30, 2]
    assert plan_repetitions([0.0, 0.0], most=7, seconds_budget=1.0) == [7, 7]


def test_common_time_takes_the_offset_out_and_interpolates_drift():
    before = ClockOffsets(at_s=100.0, offset_s=[0.0, 8.0], error_s=[0.0, 0.1])
    after = ClockOffsets(at_s=104.0, offset_s=[0.0, 10.0], error_s=[0.0, 0.1])
    assert common_time(102.0, 0, before, after) == 2.0
    assert common_time(108.0, 1, before, after) == 0.0
    assert common_time(110.0, 1, before, before) == 2.0
    # The peer's clock says 8 + 102 while its offset grows: half-way, so 9 is taken off.
    assert common_time(110.0, 1, before, after) == 1.0
    assert common_time(200.0, 1, before, after) == 200.0 - 10.0 - 100.0


class FakeGroup:
    """Two ranks, of which this is the first; all-reduces take alpha + beta · bytes of a fake clock."""

    def __init__(self, clock, alpha_s, beta_s_per_byte, world=2, wire=torch.float32):
        self.wire = wire
        self.clock, self.alpha_s, self.beta_s_per_byte, self.world = clock, alpha_s, beta_s_per_byte, world
        self.reduced = []

    def get_rank(self, group):
        return 0

    def get_world_size(self, group):
        return self.world

    def all_gather(self, into, tensor, group):
        for part in into:
            part.copy_(tensor)

    def broadcast(self, tensor, group, group_src):
        assert group_src == 0

    def all_reduce(self, tensor, group, async_op=False):
        if not async_op:
            assert tensor.numel() == 1, "only the alignment is synchronous"
            return None
        assert tensor.dtype == self.wire
        nbytes = tensor.nbytes
        self.reduced.append(nbytes)
        return types.SimpleNamespace(wait=lambda: self.clock.advance(self.alpha_s + self.beta_s_per_byte * nbytes))


def measure(monkeypatch, sizes_bytes, world=2, **options):
    clock = FakeClock()
    group = FakeGroup(
        clock, alpha_s=2**-10, beta_s_per_byte=2**-20, world=world, wire=options.get("wire", torch.float32)
    )
    monkeypatch.setattr(collectives, "dist", group)
    monkeypatch.setattr(collectives, "start_all_reduce", functools.partial(group.all_reduce, async_op=True))
    monkeypatch.setattr(collectives, "workers_of", group.get_world_size)
    return measure_all_reduce(sizes_bytes, "cpu", None, clock=clock, **options), group, clock


def test_measurement_gives_back_the_cost_of_each_size(monkeypatch):
    sizes_bytes = [1024, 4096, 65536]
    raw, group, clock = measure(monkeypatch, sizes_bytes, repetitions=6, seconds_budget=100.0)
    assert [point["nbytes"] for point in raw] == sizes_bytes
    assert [len(point["start_s"]) for point in raw] == [7, 7, 7]
    for found, size in zip(cost_points([raw]), sizes_bytes, strict=True):
        assert found.transfer_s == pytest.approx(2**-10 + size * 2**-20, abs=3e-9)
        assert (found.wait_s, found.repetitions) == (0.0, 6)
    assert clock.resets == 1
    # One to set up, a pilot in ascending order, then all mixed.
    assert group.reduced[:4] == [1024, *sizes_bytes]
    mixed = group.reduced[4:]
    assert sorted(mixed) == sorted(sizes_bytes * 6)
    assert mixed != sorted(mixed)
    assert measure(monkeypatch, sizes_bytes, repetitions=6, seconds_budget=100.0)[1].reduced == group.reduced  # a rank


def test_compressed_gradients_are_timed_as_they_travel_and_kept_by_their_own_size(monkeypatch):
    raw, group, _ = measure(monkeypatch, [4096, 65536], repetitions=2, wire=torch.bfloat16)
    assert set(group.reduced) == {2048, 32768}
    for found, size in zip(cost_points([raw]), [4096, 65536], strict=True):
        assert found.nbytes == size
        assert found.transfer_s == pytest.approx(2**-10 + size / 2 * 2**-20, abs=3e-9)


def test_the_budget_limits_repetitions(monkeypatch):
    # 1 MiB takes 1.001 s, and is counted twice: for itself and, as the fastest, for the alignment.
    raw, _, _ = measure(monkeypatch, [2**20], repetitions=30, seconds_budget=20.0)
    assert len(raw[0]["start_s"]) == 1 + 8


def test_progress_is_told_before_every_repetition(monkeypatch):
    notes = []
    measure(monkeypatch, [1024, 2048], repetitions=5, seconds_budget=100.0, note=notes.append)
    assert len(notes) == 12
    assert notes[0] == "all-reduce of 1024 bytes, first repetition"
    assert notes[-1].startswith("all-reduce 10 of 10: ")


@pytest.mark.parametrize(
    ("sizes_bytes", "options", "reason"),
    [
        ([], {}, "multiples of 4"),
        ([0], {}, "multiples of 4"),
        ([1024, 1026], {}, "multiples of 4"),
        ([1024], {"repetitions": 0}, "0 repetitions"),
        ([1024], {"world": 1}, "at least two ranks"),
    ],
)
def test_impossible_measurements_are_refused(monkeypatch, sizes_bytes, options, reason):
    with pytest.raises(ValueError, match=reason):
        measure(monkeypatch, sizes_bytes, **options)


def test_ranks_of_one_kernel_have_the_same_clock_and_without_its_identity_nobody_is_trusted(monkeypatch):
    def refuse(*_, **__):
        raise FileNotFoundError

    assert collectives._kernel_identity() == collectives._kernel_identity()
    assert 0 <= collectives._kernel_identity() < 2**62
    monkeypatch.setattr(collectives.Path, "read_text", refuse)
    assert collectives._kernel_identity() != collectives._kernel_identity()


@pytest.mark.parametrize(
    ("name", "apart"),
    [("all_gather", True), ("reduce_scatter", True), ("all_reduce", True), ("broadcast", False)],
)
def test_ranks_on_cpus_start_one_after_the_other_in_changing_order(monkeypatch, name, apart):
    world, repetitions, tick_s = 3, 4, 2.0**-14

    def waits_of(rank):
        """The time from the alignment to the call in each repetition [s], on a clock that every reading moves."""
        clock = FakeClock()
        group, aligned_s, waits_s = FakeGroup(clock, 0.0, 0.0, world=world), [], []

        def perf_counter():
            clock.advance(tick_s)
            return clock.now_s

        monkeypatch.setattr(group, "get_rank", lambda group: rank)
        monkeypatch.setattr(group, "all_reduce", lambda tensor, group: aligned_s.append(clock.now_s))
        monkeypatch.setattr(collectives, "dist", group)
        monkeypatch.setattr(collectives, "workers_of", group.get_world_size)
        monkeypatch.setattr(collectives, "time", types.SimpleNamespace(perf_counter=perf_counter))
        call = collectives.CALLS[name](1024, torch.device("cpu"), None)
        monkeypatch.setattr(call, "run", lambda nbytes: waits_s.append(clock.now_s - aligned_s[-1]))
        runs = collectives._Repetitions(call, [1024], torch.device("cpu"), None, clock, note=lambda _: None)
        runs.repeat_in_mixed_order([repetitions])
        return waits_s

    ranks = [waits_of(rank) for rank in range(world)]
    for count in range(repetitions):
        waits_s = [ranks[rank][count] for rank in range(world)]
        order = [(rank + count + 1) % world if apart else 0 for rank in range(world)]
        assert waits_s == pytest.approx([place * collectives.STAGGER_S for place in order], abs=2 * tick_s)


class FakeStore:
    """A store, and a peer behind it whose clock is 5 s ahead; each message takes a time of its own [ns]."""

    def __init__(self, ways_ns):
        self.ways_ns, self.now_ns, self.keys, self.kept = iter(ways_ns), 0, [], {}

    def perf_counter_ns(self):
        return self.now_ns

    def perf_counter(self):
        return self.now_ns * 1e-9

    def set(self, key, value):
        self.keys.append(key)
        there_ns, back_ns = next(self.ways_ns)
        self.now_ns += there_ns
        self.kept[key.replace("ask", "answer")] = str(self.now_ns + 5_000_000_000).encode()
        self.now_ns += back_ns

    def wait(self, keys):
        assert all(key in self.kept for key in keys)

    def get(self, key):
        return self.kept[key]


def test_another_kernel_s_clock_is_read_through_the_store_by_the_shortest_exchange(monkeypatch):
    ways_ns = [(900_000, 100_000)] * collectives.PINGS
    ways_ns[7] = (20_000, 20_000)
    store, group = FakeStore(ways_ns), FakeGroup(FakeClock(), 0.0, 0.0)

    def all_gather(into, tensor, group):
        for rank, part in enumerate(into):
            part.copy_(tensor + rank)

    monkeypatch.setattr(group, "all_gather", all_gather)
    monkeypatch.setattr(collectives, "dist", group)
    monkeypatch.setattr(collectives, "time", store)
    monkeypatch.setattr(collectives, "_get_default_store", lambda: store)
    found = collectives.clock_offsets(None, torch.device("cpu"))
    assert found.offset_s == [0.0, pytest.approx(5.0, abs=1e-12)]
    assert found.error_s == [0.0, pytest.approx(20e-6, abs=1e-12)]
    assert len(set(store.keys)) == collectives.PINGS
    store.ways_ns = iter(ways_ns)
    collectives.clock_offsets(None, torch.device("cpu"))
    assert len(set(store.keys)) == 2 * collectives.PINGS  # an old answer is never taken for a new one


def test_each_size_says_how_its_time_line_was_made(monkeypatch):
    offsets = iter([ClockOffsets(0.0, [0.0, 0.25], [0.0, 0.001]), ClockOffsets(9.0, [0.0, 0.25], [0.0, 0.002])])
    monkeypatch.setattr(collectives, "clock_offsets", lambda group, device: next(offsets))
    monkeypatch.setattr(FakeGroup, "get_rank", lambda self, group: 1)
    raw, _, _ = measure(monkeypatch, [1024, 2048], repetitions=2, seconds_budget=1.0)
    assert [(point["offset_s"], point["clock_error_s"]) for point in raw] == [(0.25, 0.002)] * 2


def test_one_kernel_s_clock_has_no_error(monkeypatch):
    raw, _, _ = measure(monkeypatch, [1024], repetitions=2, seconds_budget=1.0)
    assert clocks([raw, raw]) == {"clock_offset_s": [0.0, 0.0], "clock_error_s": 0.0}
    other = [point | {"offset_s": -0.5, "clock_error_s": 1e-4} for point in raw]
    assert clocks([raw, other]) == {"clock_offset_s": [0.0, -0.5], "clock_error_s": 1e-4}


class FakeCuda:
    """One GPU's streams as far as a measurement uses them, and everything that is given to them, in order."""

    def __init__(self, monkeypatch):
        self.current, self.log, self.tensors = "compute", [], []
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: self.Stream(self))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self.stream)
        monkeypatch.setattr(torch.cuda, "empty_cache", self.empty_cache)
        zeros = torch.zeros
        monkeypatch.setattr(
            torch, "zeros", lambda size, device, dtype=torch.float32: self.on_gpu(zeros(size, dtype=dtype))
        )

    class Stream:
        def __init__(self, cuda):
            self.cuda = cuda

        def wait_stream(self, other):
            self.cuda.log.append(("waits for", other))

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    def on_gpu(self, tensor):
        """A CPU tensor that says it lies on the GPU; so do its slices."""

        class OnGpu(torch.Tensor):
            device = torch.device("cuda", 0)

        found = tensor.as_subclass(OnGpu)
        self.tensors.append(weakref.ref(found))
        return found

    def empty_cache(self):
        self.log.append(("given back", sum(tensor() is not None for tensor in self.tensors)))


def test_on_a_gpu_events_on_one_stream_hold_the_collective_alone(monkeypatch):
    cuda = FakeCuda(monkeypatch)
    clock = FakeClock()

    class Group(FakeGroup):
        def all_reduce(self, tensor, group, async_op=False):
            assert not async_op, "that would run on a stream of NCCL's own"
            nbytes = tensor.numel() * 4
            cuda.log.append((type(cuda.current).__name__, nbytes))
            self.clock.advance(self.alpha_s + self.beta_s_per_byte * nbytes)

    marked = clock.mark
    monkeypatch.setattr(clock, "mark", lambda: cuda.log.append("mark") or marked())
    monkeypatch.setattr(collectives, "clock_offsets", lambda group, device: ClockOffsets(0.0, [0.0, 0.0], [0.0, 0.0]))
    monkeypatch.setattr(collectives, "_agree", lambda counts, group, device: counts)
    monkeypatch.setattr(collectives, "head_start", lambda stream: cuda.log.append((type(stream).__name__, "busy")))
    monkeypatch.setattr(collectives, "dist", Group(clock, alpha_s=2**-10, beta_s_per_byte=2**-20))
    monkeypatch.setattr(collectives, "workers_of", collectives.dist.get_world_size)
    raw = measure_all_reduce([1024, 4096], "cuda", None, clock=clock, repetitions=2, seconds_budget=100.0)

    assert cuda.log[0] == ("waits for", "compute")
    work = [entry for entry in cuda.log[1:-1] if entry != "mark"]
    assert {stream for stream, _ in work} == {"Stream"}
    # After the anchor's marks, each repetition keeps the stream busy while the host queues what follows:
    # the ranks are aligned, then come an event, one collective and an event.
    repeats = cuda.log[1 + collectives.ANCHORS : -1]
    for number in range(0, len(repeats), 5):
        busy, align, before, collective, after = repeats[number : number + 5]
        assert (busy, align, before, after) == (("Stream", "busy"), ("Stream", 4), "mark", "mark")
        assert collective in [("Stream", 1024), ("Stream", 4096)]
    assert len(repeats) == 5 * (1 + 2 + 4)
    for found, size in zip(cost_points([raw]), [1024, 4096], strict=True):
        assert found.transfer_s == pytest.approx(2**-10 + size * 2**-20, abs=3e-9)
    # Nothing else can use the buffer's memory, so it goes back to the driver, once nobody holds the buffer.
    assert cuda.log[-1] == ("given back", 0)
    assert len(cuda.tensors) == 2
    assert clock.flushes == collectives.ANCHORS + 2  # of the pilot and at the end: nothing waits in between
    assert cuda.current == "compute"


WORLD, RANK = 3, 1


class Group:
    """Notes the elements that each collective gets."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, list[int]]] = []

    def get_rank(self, group: object) -> int:
        return RANK

    def __getattr__(self, name: str) -> Any:
        def call(*tensors: Tensor, **_: object) -> Waited:
            self.sent.append((name, [len(tensor) for tensor in tensors]))
            return Waited()

        return call


class Waited:
    def wait(self) -> None:
        pass


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    made = Group()
    monkeypatch.setattr(collectives, "dist", made)
    monkeypatch.setattr(collectives, "workers_of", lambda group: WORLD)
    return made


@pytest.mark.parametrize(
    ("name", "called", "elements"),
    [
        ("all_gather", "all_gather_into_tensor", [12, 4]),  # rounded up to equal parts of three ranks
        ("reduce_scatter", "reduce_scatter_tensor", [4, 12]),
    ],
)
def test_a_size_is_that_of_the_whole_tensor(group: Group, name: str, called: str, elements: list[int]) -> None:
    call = CALLS[name](400, torch.device("cpu"), None)
    call.run(40)
    assert group.sent == [(called, elements)]


@pytest.mark.parametrize(("nbytes", "calls"), [(40, 8), (1 << 18, 4), (1 << 20, 1), (1 << 24, 1)])
def test_small_broadcasts_are_started_together(group: Group, nbytes: int, calls: int) -> None:
    call = CALLS["broadcast"](nbytes, torch.device("cpu"), None)
    assert call.at_once(nbytes) == calls
    call.run(nbytes)
    assert group.sent == [("broadcast", [nbytes // 4])] * calls


def test_an_all_gather_is_in_place(monkeypatch: pytest.MonkeyPatch, group: Group) -> None:
    pairs: list[tuple[Tensor, Tensor]] = []
    monkeypatch.setattr(group, "all_gather_into_tensor", lambda *pair, **_: pairs.append(pair), raising=False)
    CALLS["all_gather"](24, torch.device("cpu"), None).run(24)
    ((whole, own),) = pairs
    assert own.data_ptr() == whole.data_ptr() + RANK * 2 * 4
    assert CALLS["all_gather"](24, torch.device("cpu"), None).title == "all-gather"
