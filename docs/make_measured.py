"""Write the table of what schedules took from the committed records: `python docs/make_measured.py`.

The tables stand in schedules.md between `<!-- measured: WHICH -->` and `<!-- /measured -->`; a test holds them to the
records.
"""

from __future__ import annotations

import re
from pathlib import Path

from xbench.records import Comparison, load
from xbench.schedules import MODES

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "schedules.md"
ONE_JOB = {
    "resnet18, batch 8": "resnet18-rivals-1gbit.json",
    "densenet121, batch 4": "densenet121-rivals-1gbit.json",
    "vgg11, batch 4": "vgg11-all-1gbit.json",
}
TWO_JOBS = {
    "resnet18 twice, batch 8": "resnet18-pair-1gbit.json",
    "batch 14": "resnet18-b14-pair-1gbit.json",
    "batch 10, over Horovod": "resnet18-b10-pair-horovod-1gbit.json",
}
_TABLE = re.compile(r"(<!-- measured: (?P<which>[a-z ]+) -->\n)(?P<rows>.*?)(<!-- /measured -->)", re.DOTALL)


def main() -> None:
    """Write the page's tables again."""
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def with_tables(text: str) -> str:
    """The page's text with its tables as the records have them."""
    tables = {"one job": ONE_JOB, "two jobs": TWO_JOBS}
    return _TABLE.sub(lambda found: f"{found[1]}\n{table(tables[found['which']])}\n{found[4]}", text)


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
    mode = next((mode for text, mode in record.modes.items() if text.partition(":")[0] == name), None)
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
