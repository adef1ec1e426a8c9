"""Sections that many pages share: workload, fabric, machine, warnings, and the command of the record."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from xbench.environment import fingerprint, must_match
from xbench.records import Environment, FabricRecord, Label, WorkloadRecord
from xbench.report import sentences
from xbench.report.advice import Advice
from xbench.report.page.model import Badge, Block, Cell, Code, Facts, Section, Sentences, Table, columns
from xbench.units import format_bytes


def label_badge(label: Label) -> Badge:
    """Return a label as a badge: 'real', 'emulated' or 'simulated'."""
    return Badge(label, label)


def environment_section(environment: Environment, *more: tuple[str, str]) -> Section:
    """Return machine and software in pairs, after those in `more`, and the fingerprint of comparable results."""
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
        columns(("fact", "value"), ("fact", "value")),
        [[name, value] for name, value in sorted(environment.facts.items())],
        bulk=True,
    )
    return Section("environment", "Environment", [Facts(pairs), *([facts] if facts.rows else [])])


def environments_section(base: Environment, head: Environment, named: Sequence[tuple[str, str]]) -> Section:
    """Return the differences between the machines of two sides, what they share, and the sides in words."""
    before, after = _facts(base), _facts(head)
    matters = {"fingerprint", *(name for one in (base, head) for part in must_match(one) for name in part)}
    names = sorted(dict.fromkeys([*before, *after]), key=lambda name: name not in matters)
    must = Badge("must be the same", "failed")
    different: list[list[Cell]] = [
        [name, before.get(name, "–"), after.get(name, "–"), must if name in matters else "may differ"]
        for name in names
        if before.get(name) != after.get(name)
    ]
    same = [[name, before[name]] for name in names if before.get(name) == after.get(name)]
    headings = ("what", "base", "head", "for wall-clock figures")
    tables = [
        Table("What differs between base and head", columns(headings, headings), different, opened=True),
        Table("What is the same", columns(headings[:2], headings), same, bulk=True),
    ]
    return Section("environment", "Environment", [Facts(named), *(table for table in tables if table.rows)])


def _facts(environment: Environment) -> dict[str, str]:
    machine, software = must_match(environment)
    more = {
        "host": environment.hostname,
        "Python, all of it": environment.python,
        "torch, all of it": environment.torch or "not installed",
        "xbench": environment.xbench,
        "commit": environment.commit or "unknown",
        "fingerprint": fingerprint(environment),
    }
    return {**machine, **software, **more, **dict(sorted(environment.facts.items()))}


def caution_blocks(cautions: Sequence[str]) -> list[Block]:
    """Return cautions on predictions, if there are any."""
    return [Sentences(cautions, mark="warning")] if cautions else []


def fabric_pairs(fabric: FabricRecord) -> list[tuple[str, str]]:
    """Return facts on the connection between the ranks, as requested and as measured."""
    return [("fabric", sentences.fabric_line(fabric)), *(("", note) for note in fabric.notes)]


def workload_pair(workload: WorkloadRecord, times: str = "") -> tuple[str, str]:
    """Return the workload as a pair of a name and a sentence."""
    return ("workload", sentences.workload_line(workload) + times)


def warnings_section(warnings: Sequence[str]) -> Section:
    """Return the section of warnings, also if there are none."""
    said = Sentences(list(warnings), mark="warning") if warnings else Sentences(["None was recorded."])
    return Section("warnings", "Warnings", [said])


def command_section(*commands: str) -> Section:
    """Return the section of commands that make the record again."""
    return Section("reproduce", "Do it again", [Code(command, "the command", wrapped=True) for command in commands])


def following(found: Sequence[Advice]) -> list[Block]:
    """Return advice as sentences, each with its command to copy."""
    blocks: list[Block] = []
    for told, command in found:
        blocks += [Sentences([told]), *([Code(command, "the command", wrapped=True)] if command else [])]
    return blocks


def made_at(created: str) -> str:
    """Format a record's time as '2026-11-22 04:54 UTC'; other text is returned as it is."""
    try:
        at = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{at:%Y-%m-%d %H:%M}{' UTC' if at.utcoffset() == timedelta(0) else ''}"


def capitalized(sentence: str) -> str:
    """Return the sentence with a capital letter at its start and no other change."""
    return sentence[:1].upper() + sentence[1:]
