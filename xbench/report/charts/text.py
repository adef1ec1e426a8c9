"""What a terminal shows: recorded steps as two lanes per mode, bars with an interval, and GPU counters.

A column of a lane is filled if the lane was busy for at least half of its time. If the compute lane is empty, the
device waits for gradients. That is exposed communication, and it is shaded. A record without timelines has no lanes. A
bar is `██████├─┼─┤`, or `██████│` if the interval is narrower than a column.

GPU counters have one row per mode, or one sentence for a profile, or one line if they are missing. A run on CPUs has
none. `gpu_blocks` shows the same on a page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xbench.records import Comparison, GpuUse, Interval, ModeResult, Slice, Timeline
from xbench.report.answer import ranking
from xbench.report.console import NARROW_COLUMNS, filled_table, indented, say
from xbench.report.page import model as page
from xbench.report.page.model import columns
from xbench.text import counted
from xbench.units import format_bytes, format_clock, format_energy, format_percent, format_power, format_seconds

COMPUTING, LOADING, WAITING, TRAVELLING = "█", "▒", "░", "▄"
MIN_COLUMNS, MAX_COLUMNS = 10, 80
FAR_OFF = 0.1
"""Relative difference between a recorded step and the mode's median above which a warning is shown."""

INPUT = "input"
"""Name of the slices in which a step waits for its batch."""

_MARGIN = 22


def render_timelines(record: Comparison, console: Console) -> None:
    """Draw recorded steps of the best mode and of the reference (or the next best mode)."""
    drawn = _shown(record)
    scale_s = max((timeline.end_s for _, timeline in drawn), default=0.0)
    if scale_s <= 0:
        return
    labels = " and ".join(sorted({timeline.label for _, timeline in drawn}))
    console.print()
    say(console, f"One recorded step each ({labels}), on one scale", "italic")
    names = max(len(mode) for mode, _ in drawn)
    width = max(MIN_COLUMNS, min(MAX_COLUMNS, console.width - _MARGIN - names))
    grid = Table.grid(padding=(0, 1))
    grid.add_column(overflow="fold")
    for _ in range(3):
        grid.add_column(no_wrap=True)
    loads = False
    for mode, timeline in drawn:
        compute = _compute_lane(timeline, scale_s, width)
        loads = loads or LOADING in compute
        grid.add_row(Text(f" {mode}"), "compute", compute, format_seconds(timeline.end_s))
        grid.add_row("", "link", lane(timeline.communication, scale_s, width, TRAVELLING), "")
    console.print(grid)
    loading = f"{LOADING} waits for input, " if loads else ""
    sharded = any(carries_parameters(part) for _, timeline in drawn for part in timeline.communication)
    what = "gradients or parameters" if sharded else "gradients"
    waiting = f"{WAITING} waits for {what}: exposed"
    say(console, f"{COMPUTING} computes, {loading}{waiting}, {TRAVELLING} {what} travel", "dim")
    for sentence in (step_note(record, record.modes[mode]) for mode, _ in drawn):
        if sentence is not None:
            say(console, sentence, "yellow")


def carries_parameters(part: Slice) -> bool:
    """True if a recorded collective carries parameters, and not gradients."""
    return part.name.startswith(("all-gather", "broadcast"))


def _compute_lane(timeline: Timeline, scale_s: float, width: int) -> str:
    """Return the lane of the device: what computes, the wait for input, and the wait for gradients within the step."""
    busy = lane([part for part in timeline.compute if part.name != INPUT], scale_s, width, COMPUTING)
    loading = lane([part for part in timeline.compute if part.name == INPUT], scale_s, width, LOADING)
    within = sum((column + 0.5) / width * scale_s < timeline.end_s for column in range(width))
    empty = WAITING * within + " " * (width - within)
    stacked = zip(busy, loading, empty, strict=True)
    return "".join(next((mark for mark in marks if mark != " "), " ") for marks in stacked)


def step_note(record: Comparison, result: ModeResult) -> str | None:
    """Say how far the recorded step is from the mode's median; None if it is near or not comparable.

    A recorded step belongs to the first job. It is comparable if the mode is not paired and all jobs are equal.
    """
    paired = {mode.text for mode in record.spec.modes if mode.paired}
    equal = all(job.workload == record.jobs[0].workload for job in record.jobs)
    if result.timeline is None or result.step_s is None or result.mode in paired or not equal:
        return None
    took_s, median_s = result.timeline.end_s, result.step_s.median
    off = took_s / median_s - 1 if median_s > 0 else 0.0
    if abs(off) <= FAR_OFF:
        return None
    return (
        f"The recorded step of {result.mode} took {format_seconds(took_s)}, {format_percent(abs(off))} "
        f"{'more' if off > 0 else 'less'} than its median step, {format_seconds(median_s)}: take times from the tables."
    )


def lane(slices: Sequence[Slice], scale_s: float, columns: int, mark: str) -> str:
    """Return `columns` characters for 0 to `scale_s` [s]: `mark` where slices fill at least half of one, else ' '."""
    busy: list[tuple[float, float]] = []
    for start_s, end_s in sorted((part.start_s, part.end_s) for part in slices):
        if busy and start_s <= busy[-1][1]:
            busy[-1] = (busy[-1][0], max(busy[-1][1], end_s))
        else:
            busy.append((start_s, end_s))
    cells = []
    for column in range(columns):
        low_s, high_s = column / columns * scale_s, (column + 1) / columns * scale_s
        filled_s = sum(max(0.0, min(end_s, high_s) - max(start_s, low_s)) for start_s, end_s in busy)
        cells.append(mark if 2 * filled_s >= high_s - low_s else " ")
    return "".join(cells)


def _shown(record: Comparison) -> list[tuple[str, Timeline]]:
    """Return the best mode with a recorded step, and the reference, or the next best if the reference is best."""
    recorded = [(result.mode, result.timeline) for result in ranking(record) if result.timeline is not None]
    others = sorted(recorded[1:], key=lambda pair: pair[0] != record.reference)
    return [*recorded[:1], *others[:1]]


FILLED, LOW, HIGH, MEDIAN, BETWEEN, NARROW = "█", "├", "┤", "┼", "─", "│"
LEGEND = f"bar: time per sample from 0, {LOW}{BETWEEN}{HIGH} or {NARROW} its 95 % interval"


def bar(value: float, interval: Interval, longest: float, columns: int) -> str:
    """Return at most `columns` characters for 0 to `longest`, which is above 0 and not below the interval's end."""

    def column(at: float) -> int:
        return min(columns - 1, max(0, int(at / longest * columns)))

    low, middle, high = column(interval[0]), column(value), column(interval[1])
    if low >= high:
        return FILLED * middle + NARROW
    inside = "".join(MEDIAN if at == middle else BETWEEN for at in range(low + 1, high))
    return f"{FILLED * low}{LOW}{inside}{HIGH}"


WORDS = ("mode", "throttled")
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
        devices = counted(max(use.devices for use in uses.values()), "GPU")
        labels = " and ".join(sorted({modes[name].label for name in uses}))
        title = f"{devices} while modes were timed ({labels})"
        if console.width < NARROW_COLUMNS:
            say(console, title, "italic")
            for name, use in uses.items():
                indented(console, f"{name}: {_sentence(use)}")
        else:
            rows: list[list[str | Text]] = [
                [name, *_cells(use), Text(_throttled(use, ", "), style="yellow" if use.throttled else "")]
                for name, use in uses.items()
            ]
            console.print(filled_table(title, HEADINGS, rows, WORDS))
            say(console, GPU_COLUMNS, "dim")
    _draw_missing(missing, console)


def _draw_missing(missing: str | None, console: Console) -> None:
    if missing is not None:
        console.print()
        say(console, f"GPU counters: not available: {missing}", "yellow")


def gpu_blocks(uses: Sequence[tuple[str, GpuUse | None]], missing: str | None, label: str) -> list[page.Block]:
    """Return the same for a page: one row per mode, or one for a profile; empty if there are no counters."""
    rows = [[name, *_cells(use), _throttled(use, ": ")] for name, use in uses if use is not None]
    note = (
        "Busy: share of time in which any kernel ran. Power: of all devices together, and energy is that over samples. "
        "Memory and hottest: of the fullest and the hottest device."
    )
    title = f"What the GPUs said meanwhile ({label})"
    table = page.Table(title, columns(HEADINGS, WORDS), rows, note, opened=True)
    absent = page.Sentences([f"GPU counters: not available: {missing}."], mark="warning")
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
