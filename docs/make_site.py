"""Stage the pages for the site, and build it into site/: `python docs/make_site.py`, or `make docs`.

Pages link to committed results with `../results/FILE`, which is right on a code host and outside of what a site may
hold. So the pages are copied to build/docs, with the results beside them and these links rewritten; then Zensical
builds them by zensical.toml. Whatever it warns of fails the build. Nothing is fetched, neither then nor by a reader.
"""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FETCHED = "https://unpkg.com/iframe-worker/shim"
"""What the theme would load to search pages that were opened from a disk; docs/worker.js does it here."""

_OUTWARD = re.compile(r"\]\(\.\./(?P<target>[^)#]+)(?P<anchor>#[^)]*)?\)")
_BARRED = re.compile(r"`(?P<text>[^`\n]*\\\|[^`\n]*)`")
BAR = "\\|"


RESULT_PAGES = {"results/README.md": "committed-results.md", "results/gpu/README.md": "gpu-results.md"}
"""Pages outside docs/, and their names on the site."""


def build(folder: Path) -> int:
    """Stage and build in a folder, such as that of the repository; the exit code."""
    stage(folder / "build" / "docs")
    if folder != ROOT:
        shutil.copy(ROOT / "zensical.toml", folder)
    words = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(words, cwd=folder)
    if done.returncode == 0:
        for page in (folder / "site").glob("*.html"):
            page.write_text(page.read_text(encoding="utf-8").replace(FETCHED, "worker.js"), encoding="utf-8")
    return done.returncode


def stage(folder: Path) -> None:
    """Make the folder hold the site's pages, pictures and results, and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "results").mkdir(parents=True)
    for page in (ROOT / "docs").glob("*.md"):
        (folder / page.name).write_text(inward(page.read_text(encoding="utf-8")), encoding="utf-8")
    for source, page_name in RESULT_PAGES.items():
        (folder / page_name).write_text(inward((ROOT / source).read_text(encoding="utf-8")), encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "images", folder / "images")
    for asset in ("site.css", "worker.js", "schema.json"):
        shutil.copy(ROOT / "docs" / asset, folder)
    for name in ("results", "results/gpu"):
        (folder / name).mkdir(exist_ok=True)
        for record in (ROOT / name).glob("*.json"):
            shutil.copy(record, folder / name)


def inward(text: str) -> str:
    """The text of a page of docs/ or results/ as the staged folder needs it.

    Its links between the two folders are those of the one folder, and a bar inside code inside a table, which a code
    host wants escaped, is one that the site's Markdown takes too.
    """
    text = _OUTWARD.sub(lambda link: f"]({_staged(link['target'])}{link['anchor'] or ''})", text)
    return _BARRED.sub(lambda code: f"<code>{html.escape(code['text']).replace(BAR, '&#124;')}</code>", text)


def _staged(target: str) -> str:
    return RESULT_PAGES.get(target, target.removeprefix("docs/"))


if __name__ == "__main__":
    sys.exit(build(ROOT))
