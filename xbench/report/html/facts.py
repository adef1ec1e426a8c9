"""What every page ends with: what was run, where, what disturbed it, and the command that does it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from xbench.environment import fingerprint
from xbench.records import (
    CostModel,
    EmulatedLink,
    Environment,
    FabricRecord,
    GpuUse,
    Label,
    WorkloadRecord,
)
from xbench.report import lines
from xbench.report.advice import Advice
from xbench.report.html.parts import Badge, Block, Cell, Code, Column, Facts, Section, Sentences, Table
from xbench.units import format_bytes, format_clock, format_energy, format_percent, format_power


def label_badge(label: Label) -> Badge:
    """'real', 'emulated' or 'simulated', set apart."""
    return Badge(label, label)


def environment_section(environment: Environment, *more: tuple[str, str]) -> Section:
    """Machine, system and software in pairs, `more` of them first; and the fingerprint that results must share."""
    device = "CPU" if environment.device == "cpu" else f"{environment.device_count} × {environment.device}"
    pairs = [
        *more,
        ("machine", f"{environment.hostname}: {environment.cpu}"),
        ("cores", str(environment.cores)),
        ("memory", format_bytes(environment.memory_bytes)),
        ("device", device),
        ("Python", environment.python),
        ("torch", environment.torch or "not installed"),
        ("xbench", environment.xbench + (f", commit {environment.commit}" if environment.commit else "")),
        ("fingerprint", f"{fingerprint(environment)}: results that share it were made on machines that compare"),
    ]
    facts = Table(
        "Everything else that was noted of the machine",
        [Column("fact", figures=False), Column("value", figures=False)],
        [[name, value] for name, value in sorted(environment.facts.items())],
        bulk=True,
    )
    return Section("environment", "Environment", [Facts(pairs), *([facts] if facts.rows else [])])


def fabric_pairs(
    fabric: FabricRecord,
    cost: CostModel | None = None,
    emulated: EmulatedLink | None = None,
    tuning: str | None = None,
) -> list[tuple[str, str]]:
    """What connected the ranks: asked for, measured, noted, emulated, fitted; and how the ranks were tuned."""
    return [
        ("fabric", lines.fabric_line(fabric)),
        *(("", note) for note in fabric.notes),
        *([("host tuning", tuning)] if tuning is not None else []),
        *([("emulated", lines.emulated_line(emulated))] if emulated is not None else []),
        *([("cost model", lines.cost_line(cost))] if cost is not None else []),
    ]


def workload_pair(workload: WorkloadRecord, times: str = "") -> tuple[str, str]:
    """What was trained."""
    return ("workload", lines.workload_line(workload) + times)


def workload_pairs(workloads: Mapping[str, WorkloadRecord], what: str = "workload") -> list[tuple[str, str]]:
    """What each check trains, by its name."""
    return [(what, f"{name}: {lines.workload_line(one)}") for name, one in workloads.items()]


def warnings_section(warnings: Sequence[str]) -> list[Section]:
    """What disturbed the run, if anything did."""
    if not warnings:
        return [Section("warnings", "Warnings", [Sentences(["None was recorded."])])]
    return [Section("warnings", "Warnings", [Sentences(list(warnings), mark="warning")])]


def command_section(*commands: str) -> Section:
    """The commands to type again."""
    return Section("reproduce", "Do it again", [Code(command, "the command", wrapped=True) for command in commands])


def following(found: Sequence[Advice]) -> list[Block]:
    """What to do next: sentences, each with its command to copy."""
    blocks: list[Block] = []
    for told, command in found:
        blocks += [Sentences([told]), *([Code(command, "the command", wrapped=True)] if command else [])]
    return blocks


def moment(created: str) -> str:
    """'2026-11-22 04:54 UTC' of a record's time; what is no time stays as it is."""
    try:
        at = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{at:%Y-%m-%d %H:%M}{' UTC' if at.utcoffset() == timedelta(0) else ''}"


def capital(sentence: str) -> str:
    """A sentence with a capital letter; the rest of it stays as it is."""
    return sentence[:1].upper() + sentence[1:]


def gpu_table(uses: Sequence[tuple[str, GpuUse | None]], label: str) -> list[Table]:
    """What GPUs said of themselves, a row a mode (or one of a profile); nothing where they said nothing."""
    rows: list[list[Cell]] = [
        [
            name,
            format_percent(use.utilisation, 0),
            format_clock(use.sm_clock_mhz),
            format_power(use.power_w),
            format_energy(use.energy_j_per_sample),
            format_bytes(use.memory_peak_bytes),
            "–" if use.temperature_max_c is None else f"{use.temperature_max_c:.0f} °C",
            _throttled(use),
        ]
        for name, use in uses
        if use is not None
    ]
    if not rows:
        return []
    columns = [Column("mode", figures=False), *map(Column, ("busy", "clock", "power", "energy a sample", "memory")),
               Column("hottest"), Column("throttled", figures=False)]  # fmt: skip
    note = (
        "Busy: share of time in which any kernel ran. Power: of all devices together, and energy is that over samples. "
        "Memory and hottest: of the fullest and the hottest device."
    )
    return [Table(f"What the GPUs said meanwhile ({label})", columns, rows, note, opened=True)]


def _throttled(use: GpuUse) -> str:
    if not use.throttled:
        return "–" if use.throttled_share is None else "no"
    return f"{format_percent(use.throttled_share, 0)}: {', '.join(use.throttled)}"
