"""What GPUs said of themselves: a row a mode, one sentence for a profile, and one line where they said nothing.

Nothing is drawn of a run on CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xbench.records import Comparison, GpuUse, ModeResult, Profile
from xbench.report.console import NARROW_COLUMNS, indented, say, titled_table
from xbench.units import format_bytes, format_clock, format_energy, format_percent, format_power

GPU_COLUMNS = (
    "busy: share of time in which any kernel ran; power: of all devices together, and energy is that over samples; "
    "memory, hottest: of the fullest and the hottest device."
)


def render_gpu(record: Profile | Comparison, console: Console) -> None:
    """A blank line and what there is to say, if there is anything."""
    if isinstance(record, Comparison):
        seen = {name: result for name, result in record.modes.items() if result.gpu is not None}
        if seen:
            console.print()
            _modes(seen, console)
    elif record.gpu is not None:
        console.print()
        gpus = "GPU" if record.gpu.devices == 1 else f"{record.gpu.devices} GPUs"
        say(console, f"{gpus} during the profile: {_sentence(record.gpu)}.")
    if record.gpu_missing is not None:
        console.print()
        say(console, f"GPU counters: not available: {record.gpu_missing}", "yellow")


def _modes(seen: Mapping[str, ModeResult], console: Console) -> None:
    devices = max(result.gpu.devices for result in seen.values() if result.gpu is not None)
    labels = " and ".join(sorted({result.label for result in seen.values()}))
    title = f"{devices} GPU{'s' if devices != 1 else ''} while modes were timed ({labels})"
    if console.width < NARROW_COLUMNS:
        say(console, title, "italic")
        for name, result in seen.items():
            if result.gpu is not None:
                indented(console, f"{name}: {_sentence(result.gpu)}")
        return
    console.print(_table(title, seen))
    say(console, GPU_COLUMNS, "dim")


def _table(title: str, seen: Mapping[str, ModeResult]) -> Table:
    table = titled_table(title, ("mode", "left"), ("busy", "right"), ("clock", "right"), ("power", "right"),
                         ("energy a sample", "right"), ("memory", "right"), ("hottest", "right"),
                         ("throttled", "left"))  # fmt: skip
    for name, result in seen.items():
        use = result.gpu
        if use is None:
            continue
        table.add_row(
            Text(name),
            format_percent(use.utilisation, 0),
            format_clock(use.sm_clock_mhz),
            format_power(use.power_w),
            format_energy(use.energy_j_per_sample),
            format_bytes(use.memory_peak_bytes),
            _temperature(use),
            Text(_throttled(use), style="yellow" if use.throttled else ""),
        )
    return table


def _sentence(use: GpuUse) -> str:
    """'busy 98 %, 1.98 GHz, 612 W, 1.23 J a sample, 41.2 GiB in use, up to 67 °C, throttled: no': what is known."""
    told = [
        f"busy {format_percent(use.utilisation, 0)}" if use.utilisation is not None else None,
        format_clock(use.sm_clock_mhz) if use.sm_clock_mhz is not None else None,
        format_power(use.power_w) if use.power_w is not None else None,
        f"{format_energy(use.energy_j_per_sample)} a sample" if use.energy_j_per_sample is not None else None,
        f"{format_bytes(use.memory_peak_bytes)} in use" if use.memory_peak_bytes is not None else None,
        f"up to {_temperature(use)}" if use.temperature_max_c is not None else None,
        f"throttled: {_throttled(use)}" if use.throttled or use.throttled_share is not None else None,
    ]
    return ", ".join(part for part in told if part is not None) or "it said nothing"


def _temperature(use: GpuUse) -> str:
    return "–" if use.temperature_max_c is None else f"{use.temperature_max_c:.0f} °C"


def _throttled(use: GpuUse) -> str:
    """'no', or for how many of the readings and why; '–' where the GPU does not tell."""
    if not use.throttled:
        return "–" if use.throttled_share is None else "no"
    return f"{format_percent(use.throttled_share, 0)}, {', '.join(use.throttled)}"
