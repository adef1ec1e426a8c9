"""Draw the pictures of README and docs from committed records: `python docs/make_images.py` (with Chromium)."""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console

from xbench.records import load
from xbench.report.formats.html import render
from xbench.report.formats.terminal import show

ROOT = Path(__file__).parent.parent
PICTURES = {"compare": ("results/resnet18-b14-1gbit.json", "xbench report results/resnet18-b14-1gbit.json")}
PAGE, FIRST_SCREEN = "results/resnet18-rivals-1gbit.json", {"width": 1200, "height": 1000}


def first_screen(target: Path) -> None:
    """What a browser shows first of the HTML report."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        file = Path(folder) / "report.html"
        file.write_text(render(load(ROOT / PAGE)), encoding="utf-8")
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=FIRST_SCREEN)
        page.goto(file.as_uri())
        page.wait_for_function("document.querySelector('.plot').dataset.drawn")
        page.screenshot(path=target)
        browser.close()


def main() -> None:
    """Write docs/images/*."""
    for name, (record, title) in PICTURES.items():
        console = Console(record=True, width=104, file=io.StringIO(), force_terminal=True, color_system="truecolor")
        show(load(ROOT / record), console, place=record)
        target = ROOT / "docs" / "images" / f"{name}.svg"
        target.parent.mkdir(exist_ok=True)
        console.save_svg(str(target), title=title)
        print(target)
    first_screen(ROOT / "docs" / "images" / "report-html.png")


if __name__ == "__main__":
    main()
