"""GPU counters: one row per mode, one sentence for a profile, and one line if they are missing.

A run on CPUs has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from xbench.records import GpuUse, ModeResult
from xbench.report.console import NARROW_COLUMNS, indented, say, titled_table
from xbench.report.page.model import Block, Column, Sentences, Table
from xbench.units import format_bytes, format_clock, format_energy, format_percent, format_power

HEADINGS = ("mode", "busy", "clock", "power", "energy a sample", "memory", "hottest", "throttled")
GPU_COLUMNS = (
    "busy: share of time in which any kernel ran; power: of all devices together, and energy is that over samples; "
    "memory, hottest: of the fullest and the hottest device."
)


def draw_profile_gpu(use: GpuUse | None, missing: str | None, console: Console) -> None:
    """Print a blank line and a sentence, if there are counters."""
    if use is not None:
        console.print()
        gpus = "GPU" if use.devices == 1 else f"{use.devices} GPUs"
        say(console, f"{gpus} during the profile: {_sentence(use)}.")
    _draw_missing(missing, console)


def draw_mode_gpus(modes: Mapping[str, ModeResult], missing: str | None, console: Console) -> None:
    """Print a blank line and one row per mode, if there are counters."""
    uses = {name: result.gpu for name, result in modes.items() if result.gpu is not None}
    if uses:
        console.print()
        devices = max(use.devices for use in uses.values())
        labels = " and ".join(sorted({modes[name].label for name in uses}))
        _draw_uses(f"{devices} GPU{'s' if devices != 1 else ''} while modes were timed ({labels})", uses, console)
    _draw_missing(missing, console)


def _draw_uses(title: str, uses: Mapping[str, GpuUse], console: Console) -> None:
    if console.width < NARROW_COLUMNS:
        say(console, title, "italic")
        for name, use in uses.items():
            indented(console, f"{name}: {_sentence(use)}")
        return
    table = titled_table(title, *((name, "left" if name in ("mode", "throttled") else "right") for name in HEADINGS))
    for name, use in uses.items():
        table.add_row(Text(name), *_cells(use), Text(_throttled(use, ", "), style="yellow" if use.throttled else ""))
    console.print(table)
    say(console, GPU_COLUMNS, "dim")


def _draw_missing(missing: str | None, console: Console) -> None:
    if missing is not None:
        console.print()
        say(console, f"GPU counters: not available: {missing}", "yellow")


def gpu_blocks(uses: Sequence[tuple[str, GpuUse | None]], missing: str | None, label: str) -> list[Block]:
    """Return the same for a page: one row per mode, or one for a profile; empty if there are no counters."""
    rows = [[name, *_cells(use), _throttled(use, ": ")] for name, use in uses if use is not None]
    note = (
        "Busy: share of time in which any kernel ran. Power: of all devices together, and energy is that over samples. "
        "Memory and hottest: of the fullest and the hottest device."
    )
    columns = [Column(name, figures=name not in ("mode", "throttled")) for name in HEADINGS]
    table = Table(f"What the GPUs said meanwhile ({label})", columns, rows, note, opened=True)
    absent = Sentences([f"GPU counters: not available: {missing}."], mark="warning")
    return [*([table] if rows else []), *([absent] if missing is not None else [])]


def _cells(use: GpuUse) -> list[str]:
    return [
        format_percent(use.utilisation, 0),
        format_clock(use.sm_clock_mhz),
        format_power(use.power_w),
        format_energy(use.energy_j_per_sample),
        format_bytes(use.memory_peak_bytes),
        _temperature(use),
    ]


def _sentence(use: GpuUse) -> str:
    """Format the known counters: 'busy 98 %, 1.98 GHz, 612 W, 1.23 J a sample, …, up to 67 °C, throttled: no'."""
    told = [
        f"busy {format_percent(use.utilisation, 0)}" if use.utilisation is not None else None,
        format_clock(use.sm_clock_mhz) if use.sm_clock_mhz is not None else None,
        format_power(use.power_w) if use.power_w is not None else None,
        f"{format_energy(use.energy_j_per_sample)} a sample" if use.energy_j_per_sample is not None else None,
        f"{format_bytes(use.memory_peak_bytes)} in use" if use.memory_peak_bytes is not None else None,
        f"up to {_temperature(use)}" if use.temperature_max_c is not None else None,
        f"throttled: {_throttled(use, ', ')}" if use.throttled or use.throttled_share is not None else None,
    ]
    return ", ".join(part for part in told if part is not None) or "it said nothing"


def _temperature(use: GpuUse) -> str:
    return "–" if use.temperature_max_c is None else f"{use.temperature_max_c:.0f} °C"


def _throttled(use: GpuUse, between: str) -> str:
    """Format throttling as 'no', or as a share of the readings with reasons; '–' if the GPU does not report it."""
    if not use.throttled:
        return "–" if use.throttled_share is None else "no"
    return f"{format_percent(use.throttled_share, 0)}{between}{', '.join(use.throttled)}"
