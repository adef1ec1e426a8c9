"""What every page ends with: what was run, where, what disturbed it, and the command that does it again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from xbench.environment import fingerprint
from xbench.records import CostModel, EmulatedLink, Environment, FabricRecord, Label, WorkloadRecord
from xbench.report import sentences
from xbench.report.advice import Advice
from xbench.report.page.model import Badge, Block, Code, Column, Facts, Section, Sentences, Table
from xbench.units import format_bytes


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
    fabric: FabricRecord, cost: CostModel | None = None, emulated: EmulatedLink | None = None
) -> list[tuple[str, str]]:
    """What connected the ranks: asked for, measured, noted, emulated, fitted."""
    return [
        ("fabric", sentences.fabric_line(fabric)),
        *(("", note) for note in fabric.notes),
        *([("emulated", sentences.emulated_line(emulated))] if emulated is not None else []),
        *([("cost model", sentences.cost_line(cost))] if cost is not None else []),
    ]


def workload_pair(workload: WorkloadRecord, times: str = "") -> tuple[str, str]:
    """What was trained."""
    return ("workload", sentences.workload_line(workload) + times)


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
