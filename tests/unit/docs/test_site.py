"""The site builds without a warning, holds every page, and asks nothing of the network."""

from __future__ import annotations

import re
import subprocess
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest
from code_blocks import script

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "docs").glob("*.md"))
LOADING = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Loaded(HTMLParser):
    """What a browser fetches to show a page, and the pictures that say nothing to those who cannot see them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.mute: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        address = given.get(LOADING.get(tag, ""))
        if address and given.get("rel") not in ("canonical", "prev", "next", "edit"):
            self.addresses.append(address)
        if tag == "img" and not given.get("alt"):
            self.mute.append(str(given.get("src")))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert script("make_site").build(folder) == 0, "make docs says what is wrong"
    return folder / "site"


def test_making_the_site_installs_what_it_needs_and_no_torch(tmp_path: Path) -> None:
    make = ["make", "--dry-run", "docs", f"VENV={tmp_path}/venv"]
    told = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    installed = [line.partition("constraints.txt ")[2] for line in told.splitlines() if " -m pip " in line]
    assert installed == ["zensical"]


def test_every_page_is_there(site: Path) -> None:
    names = {page.stem for page in PAGES} | {"committed-results", "gpu-results"}
    assert {file.stem for file in site.glob("*.html")} == names | {"404"}


def test_a_page_loads_nothing_from_elsewhere_and_describes_its_pictures(site: Path) -> None:
    for file in site.glob("*.html"):
        page = Loaded(file.read_text(encoding="utf-8"))
        assert [address for address in page.addresses if re.match(r"(https?:)?//", address)] == [], file.name
        assert page.mute == [], file.name


def test_records_that_pages_link_to_are_on_the_site(site: Path) -> None:
    schedules = (site / "schedules.html").read_text(encoding="utf-8")
    linked = re.findall(r'href="(results/[\w.-]+\.json)"', schedules)
    assert linked
    assert [file for file in linked if not (site / file).exists()] == []


def test_the_navigation_names_every_page_once() -> None:
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    named = [page for section in config["nav"] for pages in section.values() for one in pages for page in one.values()]
    pages = {page.name for page in PAGES} | {"committed-results.md", "gpu-results.md"}
    assert pages - set(named) == set(), "the nav of zensical.toml lacks them"
    assert len(named) == len(pages), "the nav of zensical.toml has more, or one twice"


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", ROOT / "results" / "README.md", ROOT / "results" / "gpu" / "README.md", *PAGES],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_hold_on_the_code_host_too(page: Path) -> None:
    """There, an anchor is a heading in lower case, with '-' for blanks and without what is no letter or digit."""
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page.read_text(encoding="utf-8")):
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in _anchors(file), f"{page.name}: {target}#{anchor}"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
