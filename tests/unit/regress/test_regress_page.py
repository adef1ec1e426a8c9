"""What docs/regress.md says of xbench.toml, metrics, verdicts and exit codes is what the code does."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import get_args

import pytest

from xbench.records import Check, RegressionVerdict, Suite
from xbench.regress import METRICS, load_suite
from xbench.regress.suite import SUITE_KEYS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "regress.md").read_text(encoding="utf-8")


def rows(heading: str) -> dict[str, str]:
    """The table below a heading line: first cell to the rest."""
    table = PAGE.split(heading, 1)[1].split("\n\n", 1)[0]
    found = re.findall(r"^\| (.+?) \| (.*) \|$", table, flags=re.MULTILINE)
    return {first.strip("`"): rest for first, rest in found if not first.startswith("-")}


def test_the_example_is_a_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").touch()
    [block] = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "results").mkdir()
    shutil.copy(ROOT / "results" / "resnet18-b14-1gbit.json", tmp_path / "results")
    (tmp_path / "xbench.toml").write_text(block, encoding="utf-8")
    suite = load_suite(tmp_path / "xbench.toml")
    assert (len(suite.checks), suite.thresholds["planned_step"]) == (2, 0.005)


def test_every_key_is_in_the_table() -> None:
    keys = {*SUITE_KEYS, *(f"check.{key}" for key in Check.model_fields)}
    assert set(rows("| key | kind | default |\n")) == keys
    assert {"checks" if key == "check" else key for key in SUITE_KEYS} == set(Suite.model_fields)


def test_every_metric_is_in_its_table_with_its_default() -> None:
    counted, timed = (
        rest.split("\n\n", 1)[0].splitlines() for rest in PAGE.split("| metric | what | threshold | label |\n")[1:]
    )
    for metric, facts in METRICS.items():
        line = next(line for line in counted + timed if line.startswith(f"| `{metric}` |"))
        assert (line in counted) == (facts.layer == "deterministic")
        default = "exact" if facts.threshold == 0 else f"{100 * facts.threshold:g} %"
        assert default in line or (facts.layer == "wall" and "the same" in line)
        assert facts.label is None or facts.label in line


def test_every_verdict_is_in_the_table() -> None:
    assert set(rows("| verdict | means | fails |\n")) == set(get_args(RegressionVerdict))


def test_the_exit_codes_are_those_of_the_design() -> None:
    assert list(rows("| code | means |\n")) == ["0", "1", "2", "3", "4", "5"]


def test_the_simulated_figures_are_those_of_the_file() -> None:
    cells = json.loads((ROOT / "results" / "regress-simulation.json").read_text(encoding="utf-8"))["cells"]
    sources = {"inside one launch": "one launch", "from launch to launch": "launches"}
    [heading] = re.findall(r"^\| recorded .*\n", PAGE, flags=re.MULTILINE)
    for row, told in rows(heading).items():
        of = {cell["slow_down"]: cell for cell in cells[sources.get(row, row)] if cell["pairs"] == 12}
        uncalibrated = of["none, never calibrated"]
        shares = [
            of["none"]["median_floor"],
            of["none"]["found"],
            uncalibrated["suspected_before_confirmation"],
            uncalibrated["found"],
            of["the larger of 5 % and twice the floor"]["found"],
            of["the larger of 10 % and twice the floor"]["found"],
        ]
        assert [float(share) for share in re.findall(r"[\d.]+(?= %)", told)] == [round(100 * one, 1) for one in shares]
