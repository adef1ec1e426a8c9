"""Conversion of xbench.toml to a `Suite`. Every key, name and unit is checked before anything is launched.

docs/regress.md lists the keys. An error is one sentence: the file, the key, its place, and the nearest valid one.
pydantic finds the errors in a table, and `toml_config` words them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import TypeVar

from pydantic_core import ErrorDetails

from xbench.errors import SpecError, UsageError, nearest
from xbench.fabrics import parse_fabric
from xbench.modes import mode_info
from xbench.records import Check, MetricName, Suite, load_measured
from xbench.regress.metrics import CHANGE_FIELDS, COUNTED, METRICS, PLANNED, field_title
from xbench.schedules import parse_mode
from xbench.spec import ModeSpec
from xbench.text import cut, one_line
from xbench.toml_config import known_keys, read_toml, validated
from xbench.workloads import parse_workload
from xbench.workloads.catalog import split_factory

MAX_NAME_CHARACTERS = 200
SUITE_KEYS = ("budget_minutes", "pairs", "alpha", "confirm", "in_turns", "thresholds", "check")
CHECK_KEYS = tuple(Check.model_fields)
START = "write [[regress.check]] with name, workload, modes and metrics: xbench regress init writes one"


def load_suite(path: Path) -> Suite:
    """Read and check a suite. `plan_from` stays as written, relative to `path.parent`, and must name a record.

    Raises SpecError for a file that does not exist or is not TOML; for an unknown key, metric, workload, mode or fabric
    (with the nearest valid one); for a value of a wrong kind or unit; for a repeated name; and for a check that lacks
    the input of one of its metrics.
    """
    where = str(path)
    missing = SpecError(f"there is no suite {str(path)!r}", hint="xbench regress init writes one")
    data = read_toml(path, missing)
    table = data.get("regress")
    if not isinstance(table, dict):
        close = nearest("regress", data)
        hint = f"did you mean [regress] where it says [{close}]?" if close else START
        raise SpecError(f"{where}: there is no table [regress]", hint=hint)
    known_keys(data, ("regress",), where, "the file")
    known_keys(table, SUITE_KEYS, where, "[regress]")
    with chdir(path.parent):  # names of files in a check are relative to the suite's, in which it is launched
        checks = _checks(table.pop("check", None), where)
    thresholds = _thresholds(table.pop("thresholds", {}), where)
    suite = validated(Suite, {**table, "thresholds": thresholds, "checks": checks}, where, "[regress]", _special)
    for check in suite.checks:
        if check.plan_from is not None:
            place = f"{where}: check {check.name!r}"
            _asking(place, "plan_from", load_measured, path.parent / check.plan_from)
    return suite


def parse_threshold(metric: MetricName, value: object) -> float:
    """Return the share in '5 %', or 0 for 'exact', which only deterministic metrics accept. Raises SpecError."""
    facts = METRICS[metric]
    takes = 'write it like "5 %"' + (', or "exact"' if facts.layer == "deterministic" else "")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        share = value if 0 < abs(value) < 1 else value / 100
        raise SpecError(f"{metric} = {value} has no unit", hint=f'write "{100 * share:g} %"')
    if not isinstance(value, str):
        raise SpecError(f"{metric} = {value!r} is not a threshold", hint=takes)
    text = value.strip()
    if text == "exact":
        if facts.layer == "wall":
            raise SpecError(f'{metric} = "exact": no clock repeats a step exactly', hint='write it like "5 %"')
        return 0.0
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(\S*)", text)
    if found is None or found[2] != "%":
        unit = found[2] if found else ""
        hint = f'a threshold is a share: write "{found[1]} %"' if found and unit.startswith("p") else takes
        said = f"the unit {unit!r} of {metric} = {value!r} is not %" if unit else f"{metric} = {value!r} has no unit"
        raise SpecError(said if found else f"{metric} = {value!r} is not a threshold", hint=hint)
    share = float(found[1]) / 100
    if not 0 < share <= 10:
        raise SpecError(f"{metric} = {value!r} is not above 0 % and at most 1000 %", hint=takes)
    return share


def _checks(tables: object, where: str) -> tuple[Check, ...]:
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise SpecError(f"{where}: there is no [[regress.check]], so nothing is watched", hint=START)
    checks: list[Check] = []
    for number, table in enumerate(tables, start=1):
        name = table.get("name")
        short = repr(name[:60]) if isinstance(name, str) and name else None
        place = f"check {short}" if short else f"[[regress.check]] number {number}"
        known_keys(table, CHECK_KEYS, where, place)
        check = validated(Check, table, where, place, _special)
        if not check.name.strip() or not name.isprintable() or len(name) > MAX_NAME_CHARACTERS:
            raise SpecError(
                f"{where}: {place}: the name {check.name[:60]!r} cannot be shown", hint="give it a short name"
            )
        if any(check.name == other.name for other in checks):
            raise SpecError(f"{where}: two checks are named {check.name!r}", hint=f'name one "{check.name}-2"')
        checks.append(_known_values(check, f"{where}: {place}"))
    return tuple(checks)


def _known_values(check: Check, where: str) -> Check:
    """Return the check with its modes as `parse_mode` writes them. Raises SpecError for one that does not parse."""
    spec = _asking(where, "workload", parse_workload, check.workload)
    factory = split_factory(spec.name)
    if factory is not None and Path(factory[0]).is_absolute():
        raise SpecError(
            f"{where}: workload: the path {factory[0]!r} is absolute, so base would train head's model",
            hint="write the path relative to the folder of the suite",
        )
    fabric = _asking(where, "fabric", parse_fabric, check.fabric)
    if fabric.name == "auto":
        raise SpecError(f"{where}: fabric 'auto' may be another one elsewhere", hint="name one, such as local:ranks=2")
    if fabric.name == "cluster":
        raise SpecError(
            f"{where}: a check starts its ranks itself, and on fabric 'cluster' others do", hint="try local:ranks=2"
        )
    modes = [_asking(where, "modes", parse_mode, mode) for mode in check.modes]
    for kind, names in (("mode", [mode.text for mode in modes]), ("metric", [*map(str, check.metrics)])):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise SpecError(f"{where}: the {kind} {twice!r} stands twice", hint="write it once")
    infos = [(mode, mode_info(mode.name)) for mode in modes]
    for found, why, instead in (
        ([mode for mode in modes if mode.paired], "needs two jobs, and a check trains one", modes[0].carrier),
        ([mode for mode, info in infos if info.compiled], "compiles first, and a check has no steps for that", "ddp"),
        (
            [mode for mode, info in infos if info.plans_units],
            "plans its units from a profile, and a check has none",
            "ddp",
        ),
    ):
        if found:
            raise SpecError(f"{where}: {found[0].text!r} {why}", hint=f"write {instead!r}")
    _has_metrics(check, modes, where)
    if check.plan_from is None:
        _needs_no_plan(check, modes, where)
    if check.workers is not None and "simulated_step" not in check.metrics:
        raise SpecError(
            f"{where}: workers says how many simulated_step simulates, and that is not among the metrics",
            hint='add "simulated_step" to metrics, or leave workers out',
        )
    return check.model_copy(
        update={"modes": tuple(mode.text for mode in modes), "expect_change": _change(check.expect_change, where)}
    )


def _change(text: str | None, where: str) -> str | None:
    """Return the expected change with single spaces. Raises SpecError for a text that no check could have printed."""
    if text is None:
        return None
    text = one_line(text)
    if " -> " not in text or not any(text.startswith(f"{field_title(field)} ") for field in CHANGE_FIELDS):
        raise SpecError(
            f"{where}: expect_change = {cut(text, 60)!r} names no change of a workload",
            hint='write what the failed check says, such as "parameters 3159050 -> 3685130"',
        )
    return text


def _has_metrics(check: Check, modes: list[ModeSpec], where: str) -> None:
    for mode in modes:
        info = mode_info(mode.carrier)
        never = [*(PLANNED if info.planner is None else ()), *(COUNTED if info.library is not None else ())]
        for metric in never:
            if metric in check.metrics:
                hint = "give it a check of its own, without that metric"
                raise SpecError(f"{where}: mode {mode.text!r} has no {metric}", hint=hint)


def _needs_no_plan(check: Check, modes: list[ModeSpec], where: str) -> None:
    planned = next((mode.text for mode in modes if mode_info(mode.carrier).follows_plan), None)
    metric = next((metric for metric in PLANNED if metric in check.metrics), None)
    if planned is not None or metric is not None:
        what = f"mode {planned!r} follows a plan" if planned is not None else f"{metric} is computed from a record"
        raise SpecError(
            f"{where}: {what}, and there is no plan_from to say from which record",
            hint='add plan_from = "results/….json", what xbench profile or xbench compare wrote',
        )


def _thresholds(table: object, where: str) -> dict[str, float]:
    place = "[regress.thresholds]"
    if not isinstance(table, dict):
        raise SpecError(f"{where}: thresholds is not a table", hint=f'write {place} and below it step_time = "5 %"')
    known_keys(table, METRICS, where, place, kind="metric")
    shares: dict[str, float] = {}
    for metric, value in table.items():
        try:
            shares[metric] = parse_threshold(metric, value)
        except SpecError as error:
            raise SpecError(f"{where}: {place}: {error}", hint=error.hint) from None
    return shares


def _special(error: ErrorDetails, at: str) -> SpecError | None:
    """Return the special message for an error in a list of names."""
    key = str(error["loc"][0])
    if error["type"] == "literal_error":
        wrong = str(error["input"])
        close = nearest(wrong, METRICS)
        hint = f"did you mean {close!r}?" if close else f"one of {', '.join(METRICS)}"
        return SpecError(f"{at}: unknown metric {wrong!r} in {key}", hint=hint)
    if error["type"] in ("tuple_type", "too_short"):
        return SpecError(f"{at}: {key} has to be a list of at least one name", hint=f'write {key} = ["…"]')
    return None


Parsed = TypeVar("Parsed")
Text = TypeVar("Text", str, Path)


def _asking(where: str, key: str, parse: Callable[[Text], Parsed], value: Text) -> Parsed:
    """Return the parsed value. The parser's error gets the place and the key."""
    try:
        return parse(value)
    except UsageError as error:
        raise SpecError(f"{where}: {key}: {error}", hint=error.hint) from None
