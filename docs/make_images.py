"""Draw the README's picture of a terminal from a committed record: `python docs/make_images.py`."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from xbench.records import load
from xbench.report.terminal import show

ROOT = Path(__file__).parent.parent
PICTURES = {"compare": ("results/resnet18-b14-1gbit.json", "xbench report results/resnet18-b14-1gbit.json")}


def main() -> None:
    """Write docs/images/*.svg."""
    for name, (record, title) in PICTURES.items():
        console = Console(record=True, width=104, file=io.StringIO(), force_terminal=True, color_system="truecolor")
        show(load(ROOT / record), console)
        target = ROOT / "docs" / "images" / f"{name}.svg"
        target.parent.mkdir(exist_ok=True)
        console.save_svg(str(target), title=title)
        print(target)


if __name__ == "__main__":
    main()
