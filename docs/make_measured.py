"""Write the tables of measured results from the committed files: `python docs/make_measured.py`.

The tables stand in PAGES between `<!-- measured: WHICH -->` and `<!-- /measured -->`; a test holds them to the files:
what schedules took to the records, how the fault suite went to faults.json, errors of predictions to the studies.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from xbench.modes import MODES
from xbench.records import Comparison, load

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))
from study import figures  # noqa: E402

PAGES = tuple(ROOT / "docs" / name for name in ("schedules.md", "reliability.md", "study.md"))
ONE_JOB = {
    "resnet18, batch 8": "resnet18-rivals-1gbit.json",
    "densenet121, batch 4": "densenet121-rivals-1gbit.json",
    "vgg11, batch 4": "vgg11-all-1gbit.json",
}
TWO_JOBS = {
    "resnet18 twice, batch 8": "resnet18-pair-1gbit.json",
    "batch 14": "resnet18-b14-pair-1gbit.json",
    "batch 5, over Horovod": "resnet18-b5-pair-horovod-1gbit.json",
}
_TABLE = re.compile(r"(<!-- measured: (?P<which>[a-z ]+) -->\n)(?P<rows>.*?)(<!-- /measured -->)", re.DOTALL)


def main() -> None:
    """Write the tables of all pages again."""
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


def with_tables(text: str) -> str:
    """The page's text with its tables as the files have them."""
    return _TABLE.sub(lambda found: f"{found[1]}\n{_rows(found['which'])}\n{found[4]}", text)


def _rows(which: str) -> str:
    if which == "faults":
        return faults_table()
    if which == "drawn matrix":
        return study_table("matrix.json")
    return table({"one job": ONE_JOB, "two jobs": TWO_JOBS}[which])


def faults_table() -> str:
    """A row a family of the fault suite: how many of its cases were run, held, broke a rule, could not be run here."""
    families = json.loads((ROOT / "results" / "faults.json").read_text(encoding="utf-8"))["summary"]
    counts = ("run", "held", "broken", "skipped")
    rows = ["| cases | run | held | broke a rule | not possible here |", "| --- | --: | --: | --: | --: |"]
    rows += [f"| {one['title']} | {' | '.join(str(one[count]) for count in counts)} |" for one in families.values()]
    totals = [str(sum(one[count] for one in families.values())) for count in counts]
    return "\n".join([*rows, f"| **all** | {' | '.join(totals)} |"]) + "\n"


def study_table(file: str) -> str:
    """A row a group of cells: errors of the predictions, at speed too, and the skill over both naive predictors."""
    points = figures.table(json.loads((ROOT / "results" / file).read_text(encoding="utf-8"))["cells"])
    groups = figures.groups(points)
    groups = groups.drop([*points["mode"].unique(), *points["workload"].unique()])
    rows = ["| group | predictions | median, % | 95 % within, % | median at speed, % | skill: as ddp | one bucket |"]
    rows.append("| --- |" + " --: |" * 6)
    for name, row in groups.iterrows():
        shares = [f"{100 * row[column]:.1f}" for column in ("median", "p95", "median_at_speed")]
        skill = [f"{row[column]:+.2f}" for column in ("as_ddp_skill", "one_bucket_skill")]
        rows.append(f"| {name} | {row['count']:.0f} | {' | '.join([*shares, *skill])} |")
    return "\n".join(rows) + "\n"


def table(files: dict[str, str]) -> str:
    """A row a mode, a column a record: time per sample over the reference's, with its 95 % interval."""
    records = {title: _comparison(file) for title, file in files.items()}
    heads = [f"[{title}](../results/{file})" for title, file in files.items()]
    rows = [f"| mode | {' | '.join(heads)} |", "| --- |" + " --- |" * len(heads)]
    for entry in MODES:
        cells = [_cell(record, entry.name) for record in records.values()]
        if any(cell != "–" for cell in cells):
            rows.append(f"| `{entry.name}` | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _comparison(file: str) -> Comparison:
    record = load(ROOT / "results" / file)
    if not isinstance(record, Comparison):
        raise TypeError(f"{file} is no comparison")
    return record


def _cell(record: Comparison, name: str) -> str:
    texts = [mode.text for mode in record.spec.modes if mode.name == name]
    mode = next((record.modes[text] for text in texts if text in record.modes), None)
    if mode is None:
        return "–"
    if mode.status == "failed":
        return "failed"
    if mode.mode == record.reference:
        return "1"
    if mode.ratio is None:
        return "–"
    low, high = mode.ratio.ci95
    return f"{mode.ratio.value:.3f} [{low:.3f}, {high:.3f}]"


if __name__ == "__main__":
    main()
