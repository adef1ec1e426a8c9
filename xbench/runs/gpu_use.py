"""GPU counters in the parent: windows of all ranks in, one `GpuUse` for each block and mode out.

Several ranks have devices of their own, and two jobs share one, so windows are grouped by device. A device's mean power
is the energy of all its windows over their seconds. The energy of a sample is the power of all devices times the mode's
seconds per sample, which counts all jobs and ranks together. It includes whole devices and their idle power during
communication. Throttled clocks become a warning, because times under them are those of a slower device.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from xbench.profilers.gpu import Window, median_of_known
from xbench.rank.events import GpuWatched
from xbench.records import GpuUse
from xbench.text import counted


class GpuFindings:
    """Collector of windows, in any order between ranks. `missing`: why a GPU has none."""

    def __init__(self) -> None:
        self.missing: str | None = None
        self._profile: list[Window] = []
        self._blocks: dict[str, dict[tuple[int, int], list[tuple[int, Window]]]] = {}

    def take(self, launch: int, job: int, event: GpuWatched) -> None:
        """Take one window of launch number `launch`, from a rank of `job`."""
        if event.mode is None:
            self._profile.append(event.window)
        else:
            self._blocks.setdefault(event.mode, {}).setdefault((launch, event.round), []).append((job, event.window))

    def of_profile(self) -> GpuUse | None:
        """Return the use during the profile of layers and links."""
        return use_of(self._profile)

    def of_block(self, launch: int, mode: str, round_: int, job: int) -> GpuUse | None:
        """Return one block of one job, without the energy of a sample: its devices may have served another job too."""
        windows = self._blocks.get(mode, {}).get((launch, round_), [])
        return use_of([window for of, window in windows if of == job])

    def of_mode(self, mode: str, seconds_per_sample: float) -> GpuUse | None:
        """Return the use over all blocks of a mode."""
        return use_of([w for windows in self._blocks.get(mode, {}).values() for _, w in windows], seconds_per_sample)

    def warnings(self) -> list[str]:
        """Return warnings of throttled clocks: one for the profile, and one for all modes with the same reasons."""
        found = []
        reasons = _throttled(self._profile)
        if reasons:
            found.append(f"the profile was made while the GPU's clocks were throttled ({', '.join(reasons)})")
        alike: dict[tuple[str, ...], list[str]] = {}
        for mode, blocks in self._blocks.items():
            by_block = [_throttled(window for _, window in windows) for windows in blocks.values()]
            if reasons := sorted(set(itertools.chain(*by_block))):
                slow = sum(1 for found_here in by_block if found_here)
                alike.setdefault(tuple(reasons), []).append(f"{slow} of {counted(len(blocks), 'block')} of {mode}")
        found += [
            f"the GPU's clocks were throttled ({', '.join(reasons)}) in {', '.join(where)}: times of a slower GPU"
            for reasons, where in alike.items()
        ]
        return found


def use_of(windows: Sequence[Window], seconds_per_sample: float | None = None) -> GpuUse | None:
    """Combine windows of any number of devices; None without any."""
    if not windows:
        return None
    power_w = _power_w(windows)
    told = [(w.throttled_readings, w.readings) for w in windows if w.throttled_readings is not None]
    watched = sum(count for _, count in told)  # readings of devices that report throttled clocks
    readings = sum(window.readings for window in windows)
    seconds = sum(window.seconds for window in windows)
    return GpuUse(
        devices=len({window.device for window in windows}),
        readings=readings,
        utilisation=median_of_known(window.utilisation for window in windows),
        memory_peak_bytes=_most(window.memory_peak_bytes for window in windows),
        power_w=power_w,
        energy_j_per_sample=power_w * seconds_per_sample if power_w is not None and seconds_per_sample else None,
        sm_clock_mhz=median_of_known(window.sm_clock_mhz for window in windows),
        memory_clock_mhz=median_of_known(window.memory_clock_mhz for window in windows),
        temperature_max_c=_most(window.temperature_max_c for window in windows),
        throttled=_throttled(windows),
        throttled_share=sum(throttled for throttled, _ in told) / watched if watched else None,
        sampling_share=sum(window.sampling_s for window in windows) / seconds,
    )


def _power_w(windows: Sequence[Window]) -> float | None:
    """Return the mean power of all devices together [W]; None unless every one of them reports its energy."""
    total_w = 0.0
    for device in dict.fromkeys(window.device for window in windows):
        seen = [(w.energy_j, w.seconds) for w in windows if w.device == device and w.energy_j is not None]
        if not seen:
            return None
        total_w += sum(energy_j for energy_j, _ in seen) / sum(seconds for _, seconds in seen)
    return total_w


def _throttled(windows: Iterable[Window]) -> list[str]:
    return list(dict.fromkeys(reason for window in windows for reason in window.throttled))


def _most(values: Iterable[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)
