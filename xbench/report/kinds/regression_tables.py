"""What `xbench regress` keeps as tidy tables: verdicts, and the launches that they rest on. See `tables`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from xbench.records import Baseline, LaunchPair, Measurement, Noise, Regression

Row = dict[str, Any]


def regression_tables(record: Regression | Baseline | Noise) -> dict[str, list[Row]]:
    """The tables by name, the main one first, and what failed last."""
    of = {"created": record.created, "complete": record.complete}
    failures = [{**of, "label": None, **failure.model_dump()} for failure in record.failures]
    return {**_measured(record), "failures": failures}


def _measured(record: Regression | Baseline | Noise) -> dict[str, list[Row]]:
    of = {"created": record.created, "complete": record.complete}
    if isinstance(record, Regression):
        launches = [*_launches(record.pairs, of, "first"), *_launches(record.confirmation, of, "confirmation")]
        return {"cases": [_case(record, of, number) for number in range(len(record.cases))], "launches": launches}
    if isinstance(record, Noise):
        labels = {one.case: one.label for pair in record.pairs for one in pair.base}
        floors = [
            {
                **of,
                "label": labels.get(floor.case),
                "check": floor.check,
                "mode": floor.mode,
                "metric": floor.metric,
                "noise_floor_share": floor.floor,
                "measured_pairs": floor.measured_pairs,
                "checked_pairs": floor.checked_pairs,
            }
            for floor in record.floors
        ]
        return {"floors": floors, "launches": list(_launches(record.pairs, of, "A/A"))}
    counted = [_measurement(one, of, None, "base", "deterministic") for one in record.side.measurements]
    timed = [
        _measurement(one, of, number, "base", "baseline")
        for number, launch in enumerate(record.launches)
        for one in launch
    ]
    return {"launches": [*counted, *timed]}


def _case(record: Regression, of: Row, number: int) -> Row:
    """One verdict with everything that it rests on; shares and ratios are plain numbers."""
    case = record.cases[number]
    found, fresh = case.found, case.confirmation
    return {
        **of,
        "label": case.label,
        "check": case.check,
        "mode": case.mode,
        "metric": case.metric,
        "unit": case.unit,
        "verdict": case.verdict,
        "reason": case.reason,
        "base": case.base,
        "head": case.head,
        "ratio": found.ratio if found else None,
        "ratio_low": found.ci95[0] if found and found.ci95 else None,
        "ratio_high": found.ci95[1] if found and found.ci95 else None,
        "p_slower_holm": found.p_slower_holm if found else None,
        "p_faster_holm": found.p_faster_holm if found else None,
        "pairs": found.pairs if found else None,
        "threshold_share": case.threshold.share,
        "threshold_from": case.threshold.source,
        "noise_floor_share": case.threshold.floor,
        "confirmation_ratio": fresh.ratio if fresh else None,
        "confirmation_ratio_low": fresh.ci95[0] if fresh and fresh.ci95 else None,
        "confirmation_ratio_high": fresh.ci95[1] if fresh and fresh.ci95 else None,
    }


def _launches(pairs: Iterable[LaunchPair], of: Row, phase: str) -> Iterator[Row]:
    for pair in pairs:
        sides = {"base": pair.base, "head": pair.head}
        second = "head" if pair.first == "base" else "base"
        for side in (pair.first, second):
            for one in sides[side]:
                yield _measurement(one, of, pair.number, side, phase)


def _measurement(one: Measurement, of: Row, pair: int | None, side: str, phase: str) -> Row:
    return {
        **of,
        "label": one.label,
        "phase": phase,
        "pair": pair,
        "side": side,
        "check": one.check,
        "mode": one.mode,
        "metric": one.metric,
        "value": one.value,
        "unit": one.unit,
        "samples": len(one.samples),
    }
