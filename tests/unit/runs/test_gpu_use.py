"""GPU counters from a rank's sampler over the journal to the record, exactly."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from samples_of_runs import A, collector_of, frame, run_of, timed

from xbench.profilers.gpu import NotAvailable, Window
from xbench.rank import gpu
from xbench.rank.events import GpuMissing, GpuWatched
from xbench.rank.gpu import GpuWatch, names_of
from xbench.rank.journal import Journal
from xbench.records import Comparison, GpuUse, dump, loads
from xbench.runs.build_records import comparison_record, profile_record
from xbench.runs.event_collector import Collector
from xbench.runs.gpu_use import GpuFindings, use_of


def seen(device: str = "GPU-0", **changes: Any) -> Window:
    """Two seconds at 300 W in which nothing slowed the device."""
    made = Window(
        device=device, seconds=2.0, readings=20, utilisation=0.9, memory_peak_bytes=100, energy_j=600.0,
        sm_clock_mhz=1500.0, memory_clock_mhz=2600.0, temperature_max_c=60, throttled=[], throttled_readings=0,
        sampling_s=0.02,
    )  # fmt: skip
    return replace(made, **changes)


def event(mode: str | None, round_: int = 0, device: str = "GPU-0", **changes: Any) -> GpuWatched:
    return GpuWatched(mode=mode, round=round_, window=seen(device, **changes))


def recorded(collector: Collector) -> Comparison:
    record = comparison_record(frame(collector.run), collector)
    assert loads(dump(record)) == record
    return record


# --- one use of many windows --------------------------------------------------------------------------------------


def test_devices_add_up_their_power_and_share_everything_else() -> None:
    found = use_of(
        [
            seen("GPU-0", energy_j=600.0, utilisation=0.8, memory_peak_bytes=100, temperature_max_c=60),
            seen("GPU-0", energy_j=800.0, utilisation=0.9, seconds=4.0, readings=60, throttled=["power cap"],
                   throttled_readings=4),
            seen("GPU-1", energy_j=500.0, utilisation=1.0, memory_peak_bytes=300, temperature_max_c=71),
        ],
        seconds_per_sample=0.01,
    )  # fmt: skip
    assert found == GpuUse(
        devices=2, readings=100, utilisation=0.9, memory_peak_bytes=300, power_w=1400 / 6 + 250,
        energy_j_per_sample=(1400 / 6 + 250) * 0.01, sm_clock_mhz=1500.0, memory_clock_mhz=2600.0, temperature_max_c=71,
        throttled=["power cap"], throttled_share=0.04, sampling_share=0.06 / 8,
    )  # fmt: skip


def test_a_device_that_does_not_say_its_energy_leaves_none() -> None:
    found = use_of([seen("GPU-0"), seen("GPU-1", energy_j=None)], 0.01)
    assert (found.power_w, found.energy_j_per_sample) == (None, None)
    found = use_of([seen(energy_j=None), seen(energy_j=100.0)], 0.01)  # a first block before the counter was read
    assert found.power_w == 50.0


def test_a_device_that_does_not_tell_of_throttles_is_not_taken_for_a_sound_one() -> None:
    found = use_of([seen(throttled_readings=None)])
    assert (found.throttled, found.throttled_share) == ([], None)


def test_nothing_seen_is_nothing() -> None:
    assert use_of([]) is None
    found = GpuFindings()
    assert found.of_profile() is None
    assert found.of_mode("ddp", 1.0) is None
    assert found.of_block(0, "ddp", 0, 0) is None
    assert found.warnings() == []


# --- into the record ----------------------------------------------------------------------------------------------


def test_every_block_and_mode_has_what_its_ranks_saw() -> None:
    collector = collector_of(run_of("ddp,wfbp"))
    for mode, watts in (("ddp", 300.0), ("wfbp", 200.0)):
        timed(collector, mode, 0.8, rounds=3)
        for round_ in range(3):
            for rank in range(2):
                joules = 2 * watts + 100 * round_
                collector.take(0, rank, event(mode, round_, f"GPU-{rank}", energy_j=joules))
    record = recorded(collector)
    ddp = record.modes["ddp"].gpu
    assert (ddp.devices, ddp.readings, ddp.power_w) == (2, 120, 700.0)  # 600, 700 and 800 J in 2 s, twice
    assert ddp.energy_j_per_sample == pytest.approx(700.0 * 0.1)  # 0.8 s for 8 samples
    powers = {mode: [s.gpu.power_w for s in record.samples if s.mode == mode and s.gpu] for mode in ("ddp", "wfbp")}
    assert powers == {"ddp": [600.0, 700.0, 800.0], "wfbp": [400.0, 500.0, 600.0]}
    assert all(sample.gpu.energy_j_per_sample is None for sample in record.samples if sample.gpu)
    assert record.gpu_missing is None
    assert record.warnings == []


def test_two_jobs_on_one_device_do_not_count_its_power_twice() -> None:
    collector = collector_of(run_of("sequential,crossover", A, A))
    for job in range(2):
        timed(collector, "sequential", 0.8, job=job)
        timed(collector, "crossover", 1.0, job=job)
        for rank in range(2):
            collector.take(job, rank, event("crossover", 0, f"GPU-{rank}"))
    use = recorded(collector).modes["crossover"].gpu
    assert (use.devices, use.power_w) == (2, 600.0)
    assert use.energy_j_per_sample == pytest.approx(600.0 / 16)  # two steps of 8 samples a second
    (first, second) = [s.gpu for s in recorded(collector).samples if s.mode == "crossover" and s.gpu]
    assert first == second


def test_throttled_clocks_are_a_warning_that_names_mode_and_reason() -> None:
    collector = collector_of(run_of("ddp,wfbp"))
    collector.take(0, 0, event(None, throttled=["thermal slowdown by the driver"], throttled_readings=9))
    for mode in ("ddp", "wfbp"):
        timed(collector, mode, 0.8, rounds=3)
        for round_ in range(3):
            hot = mode == "wfbp" and round_ < 2
            reasons = ["power cap", "power brake"][: 1 + round_] if hot else []
            collector.take(0, 0, event(mode, round_, throttled=reasons, throttled_readings=5 * hot))
            collector.take(0, 1, event(mode, round_, "GPU-1"))
    record = recorded(collector)
    profiled, blocks = record.warnings
    assert "profile" in profiled
    assert "(thermal slowdown by the driver)" in profiled
    assert "(power brake, power cap) in 2 of 3 blocks of wfbp" in blocks
    assert record.modes["wfbp"].gpu.throttled_share == pytest.approx(10 / 120)


def test_the_same_round_of_two_launches_is_two_blocks() -> None:
    found = GpuFindings()
    for launch in range(2):
        found.take(launch, 0, event("ddp", 0, throttled=["power cap"], throttled_readings=launch))
    found.take(1, 0, event("wfbp", 0, throttled=["power cap"], throttled_readings=1))
    (warning,) = found.warnings()
    assert "(power cap) in 2 of 2 blocks of ddp, 1 of 1 block of wfbp" in warning
    first, second = (found.of_block(launch, "ddp", 0, 0) for launch in range(2))
    assert (first.throttled_share, second.throttled_share) == (0, 0.05)


def test_a_profile_has_what_was_seen_while_it_was_made_and_why_it_was_not() -> None:
    run = run_of()
    collector = collector_of(run)
    collector.take(0, 0, event(None))
    collector.take(0, 1, GpuMissing(reason="GPU is lost, after 3 readings"))
    collector.take(0, 0, GpuMissing(reason="a second reason"))
    record = profile_record(frame(run), collector)
    assert loads(dump(record)) == record
    assert record.gpu == use_of([seen()])
    assert record.gpu_missing == "GPU is lost, after 3 readings"


# --- a rank's side ------------------------------------------------------------------------------------------------

SEEN = seen("1a2b")


class OneWindow:
    """A sampler that saw one window."""

    failure: str | None = None

    def __init__(self) -> None:
        self.asked: list[tuple[float, float]] = []
        self.running = True

    def start(self) -> None:
        pass

    def stop(self) -> None:
        self.running = False

    def window(self, begin_s: float, end_s: float) -> Window:
        self.asked.append((begin_s, end_s))
        return SEEN


def journaled(folder: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in (folder / "job0-rank0.jsonl").read_text().splitlines()]
    for one in events:
        del one["t"]
    return events


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch says what cuda:0 is, wherever this runs."""
    properties = SimpleNamespace(uuid="1a2b", pci_bus_id=0x3B, pci_device_id=0, pci_domain_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)


def test_on_a_cpu_nothing_is_watched(tmp_path: Path) -> None:
    watch = GpuWatch(torch.device("cpu"), Journal(tmp_path, 0, 0), load=lambda: pytest.fail("asked for NVML"))
    watch.report(0.0, 1.0, mode="ddp", round=0)
    watch.stop()
    assert journaled(tmp_path) == []


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("failure", [None, "GPU is lost, after 3 readings"])
def test_a_window_is_written_with_its_mode_and_a_loss_after_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str | None
) -> None:
    sampler = OneWindow()
    asked: list[object] = []
    monkeypatch.setattr(gpu, "find_device", lambda *words: asked.append(words))
    monkeypatch.setattr(gpu, "Sampler", lambda nvml, handle, device: asked.append(device) or sampler)
    watch = GpuWatch(torch.device("cuda", 0), Journal(tmp_path, 0, 0), load=lambda: "nvml")
    sampler.failure = failure
    watch.report(3.0, 5.0, mode="ddp", round=2)
    if failure is not None:
        watch.report(5.0, 6.0, mode="wfbp", round=2)
    watch.stop()
    assert asked == [("nvml", "1a2b", "00000000:3b:00.0"), "1a2b"]
    assert sampler.asked == [(3.0, 5.0)]
    assert sampler.running is (failure is not None)  # a lost one is left alone
    first, *told = journaled(tmp_path)
    assert first == {"event": "gpu", "mode": "ddp", "round": 2, "window": asdict(SEEN)}
    assert told == [{"event": "gpu_missing", "reason": failure}] * (failure is not None)


def not_started() -> Any:
    raise NotAvailable("NVML did not start (Driver Not Loaded)")


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (not_started, "NVML did not start (Driver Not Loaded)"),
        (object, "AttributeError: 'object' object has no attribute"),  # a package of an unknown kind
    ],
)
def test_what_is_not_to_be_had_is_told_once(tmp_path: Path, load: Callable[[], Any], reason: str) -> None:
    watch = GpuWatch(torch.device("cuda", 0), Journal(tmp_path, 0, 0), load=load)
    watch.report(0.0, 1.0, mode="ddp", round=0)
    watch.report(1.0, 2.0, mode="wfbp", round=0)
    (told,) = journaled(tmp_path)
    assert told["event"] == "gpu_missing"
    assert told["reason"].startswith(reason)


def test_torch_s_names_are_written_as_nvml_writes_them() -> None:
    known = SimpleNamespace(uuid="1a2b", pci_domain_id=1, pci_bus_id=0xAF, pci_device_id=2)
    assert names_of(known) == ("1a2b", "00000001:af:02.0")
    assert names_of(SimpleNamespace(pci_bus_id=3)) == (None, "00000000:03:00.0")
    assert names_of(SimpleNamespace()) == (None, None)
