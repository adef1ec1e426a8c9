"""What a study's cells say of predictions: errors, skill, the order of modes, regret, and `auto` against `ddp`.

- **Error** is predicted over measured, minus one. Every mode that trains counts, and so does every step.
- **Skill** is 1 − median |error| / median |error| of a naive predictor. One takes every mode to need what `ddp` is
  predicted to need (`as_ddp`), one the computation plus T of all gradients in one collective (`one_bucket`).
- **Order**: of the pairs of modes whose measured ratio has an interval without 1, how many were predicted right.
- **Regret** is what the mode that is predicted to be fastest takes longer than the fastest measured one. The shortest
  of several medians is short by chance too, so it is an upper estimate.
- **auto over ddp** is the geometric mean over cells with Student's 95 % upper limit: below 1.02, it is shown that
  `auto` is not slower by 2 % or more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from xbench.stats.steps import MIN_PREDICTABLE_S


def table(cells: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return a row a prediction of a mode that trains."""
    rows = []
    for number, cell in enumerate(cells):
        link = re.search(r"rate=(\w+)", cell["fabric"]["spec"])
        predicted = {point["mode"]: point["predicted_step_s"] for point in cell["points"]}
        rows += [
            {
                "cell": number, "workload": cell["workload"]["title"], "link": link and link[1],
                "workers": cell["fabric"]["world_size"], "predicted_on": cell["predicted_on"],
                "held_out": cell.get("held_out", False), "mode": point["mode"],
                "predicted_s": point["predicted_step_s"], "measured_s": point["measured_step_s"]["median"],
                "error": point["error"], "error_at_speed": point.get("error_at_speed"),
                "as_ddp_s": predicted.get("ddp"),
                "one_bucket_s": cell["compute_s"] + (cell.get("communication_s") or math.nan),
            }
            for point in cell["points"] if point["mode"] != "compute"
        ]  # fmt: skip
    return pd.DataFrame(rows).astype({"error_at_speed": float, "as_ddp_s": float}) if rows else pd.DataFrame()


def percentile95(shares: pd.Series) -> float:
    """Return the smallest share that at least 95 % of them do not exceed; NaN of none."""
    return float(shares.quantile(0.95, interpolation="inverted_cdf"))


def summary(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the errors of a group [shares], and its skill over both naive predictors; NaN where it has none."""
    off, again = rows.error.abs(), rows.error_at_speed.dropna().abs()
    found = {
        "count": len(rows), "median": off.median(), "p95": percentile95(off), "worst": off.max(),
        "bias": rows.error.median(), "median_at_speed": again.median(), "p95_at_speed": percentile95(again),
    }  # fmt: skip
    naive = rows.dropna(subset=["as_ddp_s", "one_bucket_s"])
    for name in ("as_ddp", "one_bucket"):
        guessed = (naive[f"{name}_s"] / naive.measured_s - 1).abs().median()
        found[f"{name}_skill"] = 1 - naive.error.abs().median() / guessed if guessed > 0 else math.nan
    return found


def groups(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row of errors and skill for all predictions, then by length of step, mode, workload and link."""
    named = {"all": rows}
    for column, names in (("held_out", ("other cells", "held-out cells")), ("short", ("from 30 ms", "below 30 ms"))):
        marks = rows.predicted_s < MIN_PREDICTABLE_S if column == "short" else rows.held_out
        if marks.any():
            named |= {names[mark]: rows[marks == mark] for mark in (False, True)}
    for column in ("mode", "workload", "link"):
        named |= dict(iter(rows.groupby(column, sort=False)))
    return pd.DataFrame({name: summary(group) for name, group in named.items() if len(group)}).T


def order(cells: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Count pairs of modes: all, those told apart by the measurement, and of those the right and the equal ones."""
    found = dict.fromkeys(("pairs", "decided", "right", "equal"), 0)
    for cell in cells:
        predicted_s = {point["mode"]: point["predicted_step_s"] for point in cell["points"]}
        for pair in cell.get("pairs", []):
            if pair["mode"] not in predicted_s or pair["other"] not in predicted_s:
                continue
            (low, high), found["pairs"] = pair["ci95"], found["pairs"] + 1
            if not low <= 1 <= high:
                difference_s = predicted_s[pair["mode"]] - predicted_s[pair["other"]]
                found["decided"] += 1
                found["equal"] += difference_s == 0
                found["right"] += difference_s != 0 and (difference_s < 0) == (high < 1)
    return found


def regret(rows: pd.DataFrame) -> pd.Series:
    """Return by cell what the predicted best mode takes longer than the fastest [share]; of equal ones the first."""
    by_cell = rows.groupby("cell")
    chosen = rows.loc[by_cell.predicted_s.idxmin()].set_index("cell").measured_s
    return (chosen / by_cell.measured_s.min() - 1)[by_cell.size() > 1]


def auto_over_ddp(cells: Sequence[dict[str, Any]]) -> tuple[float, float, int] | None:
    """Return the mean ratio over cells, its 95 % upper limit, and their number. None for fewer than two cells."""
    from scipy.stats import t

    signs = {("auto", "ddp"): 1, ("ddp", "auto"): -1}
    pairs = [pair for cell in cells for pair in cell.get("pairs", [])]
    logs = [signs[key] * math.log(pair["ratio"]) for pair in pairs if (key := (pair["mode"], pair["other"])) in signs]
    if len(logs) < 2:
        return None
    mean, error = float(np.mean(logs)), float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean + float(t.ppf(0.95, len(logs) - 1)) * error), len(logs)
