"""The HTML report in a real browser: it opens alone, draws the record's numbers, and works for hands, eyes and paper.

Screenshots of every page are left in build/screenshots, for people to look at.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from xbench.records import AnyRecord, Comparison, load
from xbench.report.formats.html import page as html_page

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / "build" / "screenshots"
PAGES = {
    "rivals": ["results/resnet18-rivals-1gbit.json"],
    "pair": ["results/resnet18-b14-pair-1gbit.json"],
    "several": [
        "results/resnet18-b8-1gbit.json",
        "results/resnet18-b14-1gbit.json",
        "results/resnet18-rivals-1gbit.json",
    ],
    "profile": ["tests/golden/profile-v1.json"],
    "scaling": ["tests/golden/scaling-v1.json"],
    "convergence": ["results/converge-digits-2.json"],
    "tuned": ["tests/golden/tuned-v1.json"],
    "regression": ["tests/golden/regression-v1.json"],
    "baseline": ["tests/golden/baseline-v1.json"],
    "cluster": ["tests/golden/cluster-v1.json"],
    "troubled": ["tests/golden/comparison-v1.json"],
}
DRAWN = """() => [...document.querySelectorAll('.plot')].filter(plot => !plot.closest('details:not([open])'))
    .every(plot => plot.dataset.drawn === document.documentElement.dataset.state)"""
PHONE = {"width": 360, "height": 740}
DESK = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for name in PAGES:
        made[name] = folder / f"{name}.html"
        made[name].write_text(html_page(records(name)), encoding="utf-8")
    return made


def records(name: str) -> Sequence[AnyRecord]:
    found = [load(ROOT / path) for path in PAGES[name]]
    return [_troubled(found[0])] if name == "troubled" else found


def _troubled(record: AnyRecord) -> Comparison:
    """A run that was cut off, in which one mode ran out of memory and one trained another network."""
    modes = dict(record.modes)
    modes["single"] = modes["single"].model_copy(update={"status": "failed", "error": "rank 1 ran out of memory"})
    parity = modes["mgwfbp"].parity
    wrong = parity.model_copy(update={"ok": False, "max_relative_difference": 0.31, "worst_parameter": "fc.weight"})
    modes["mgwfbp"] = modes["mgwfbp"].model_copy(update={"parity": wrong})
    return record.model_copy(update={"modes": modes, "complete": False, "error": "interrupted in round 3 of launch 1"})


class Opened:
    """A page that was opened from a file, with all that it complained of and asked the network for."""

    def __init__(self, browser: Any, path: Path, viewport: dict[str, int] = DESK, **context: Any) -> None:
        self.context = browser.new_context(viewport=viewport, **context)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def drawn(self, state: str = "") -> Any:
        """The page, when all that is not folded is drawn, and in this state if one is named."""
        self.page.wait_for_function("state => document.documentElement.dataset.state.includes(state)", arg=state)
        self.page.wait_for_function(DRAWN)
        return self.page

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


@pytest.fixture(scope="module")
def rivals(browser: Any, files: dict[str, Path]) -> Iterator[Any]:
    """A page for tests that only read."""
    with Opened(browser, files["rivals"]) as opened:
        yield opened.drawn()


@pytest.mark.parametrize("name", PAGES)
def test_it_opens_alone_and_fits_a_phone(browser: Any, files: dict[str, Path], name: str) -> None:
    with Opened(browser, files[name]) as opened:
        page = opened.drawn("wide")
        assert (page.locator(".plot .main-svg").count() > 0) == (name != "several"), "several results: tables alone"
        page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)
        page.set_viewport_size(PHONE)
        opened.drawn("narrow")
        assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"]
        right_ends = page.evaluate(
            "() => [...document.querySelectorAll('.plot .main-svg')].map(plot => plot.getBoundingClientRect().right)"
        )
        assert max(right_ends, default=0) <= PHONE["width"]
        page.screenshot(path=SCREENSHOTS / f"{name}-phone.png", full_page=True)
        assert opened.complaints == []
        assert [url for url in opened.asked if url != files[name].as_uri() and not url.startswith("data:")] == []


@pytest.mark.smoke
def test_the_bars_are_the_record_s_times(rivals: Any) -> None:
    (record,) = records("rivals")
    bars = rivals.evaluate(
        "() => document.getElementById('time-per-sample-plot')._fullData.flatMap(bars => bars.y.map("
        "(mode, place) => [mode, bars.x[place], bars.error_x.array[place]]))"
    )
    order = rivals.evaluate("() => document.getElementById('time-per-sample-plot')._fullLayout.yaxis._categories")
    rows = rivals.locator("#time-per-sample tbody tr").all_inner_texts()
    times = {mode: result.seconds_per_sample for mode, result in record.modes.items()}
    assert sorted(mode for mode, _, _ in bars) == sorted(times)
    for mode, x, reach in bars:
        assert x == pytest.approx(1e3 * times[mode].median, rel=1e-5)
        assert x + reach == pytest.approx(1e3 * times[mode].ci95[1], rel=1e-5)
    ratios = {mode: result.ratio.value for mode, result in record.modes.items() if result.ratio is not None}
    faster = {mode for mode, result in record.modes.items() if result.ratio and result.ratio.verdict == "faster"}
    first = sorted(ratios, key=lambda mode: (mode == "compute", mode not in faster, ratios[mode]))
    assert [row.split()[0] for row in rows] == order == first


def test_no_button_of_a_plot_sends_it_anywhere(rivals: Any) -> None:
    titles = rivals.evaluate(
        "() => [...new Set([...document.querySelectorAll('.modebar-btn')].map(button => button.dataset.title))]"
    )
    assert titles == ["Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"]
    servers = "() => [...document.querySelectorAll('.plot')].map(plot => plot._context?.plotlyServerURL ?? '')"
    assert set(rivals.evaluate(servers)) == {""}


def test_failed_modes_are_seen(browser: Any, files: dict[str, Path]) -> None:
    with Opened(browser, files["troubled"]) as opened:
        page = opened.drawn()
        assert page.locator(".incomplete").inner_text().startswith("INCOMPLETE: interrupted")
        told = page.locator("ul.failed li").all_inner_texts()
        assert [line.split()[:2] for line in told] == [["single", "FAILED:"], ["mgwfbp", "FAILED"]]
        assert page.locator("#time-per-sample .annotation-text", has_text="FAILED").count() == 2
        (record,) = records("troubled")
        timed = {mode for mode, result in record.modes.items() if result.is_trusted}
        assert (
            set(page.evaluate("() => document.getElementById('time-per-sample-plot').data.flatMap(bars => bars.y)"))
            == timed
        )


def test_verdicts_are_marks_at_their_ratios(browser: Any, files: dict[str, Path]) -> None:
    (record,) = records("regression")
    with Opened(browser, files["regression"]) as opened:
        page = opened.drawn()
        marks = page.evaluate(
            "() => Object.fromEntries(document.getElementById('ratios-plot')._fullData"
            ".map(trace => [trace.name, Array.from(trace.x)]))"
        )
        for verdict in ("regressed", "improved"):
            ratios = [case.found.ratio for case in record.cases if case.verdict == verdict and case.found is not None]
            assert marks[verdict] == pytest.approx(ratios, rel=1e-5)
        assert page.locator("#ratios .annotation-text", has_text="missing: head failed").count() == 1
        rows = page.locator("#deterministic tbody tr").all_inner_texts()
        assert rows[0].split()[:5] == ["resnet18/optimal", "buckets", "regressed", "3", "4"]


def test_keys_are_enough(browser: Any, files: dict[str, Path]) -> None:
    with Opened(browser, files["profile"]) as opened:
        page = opened.drawn()
        page.keyboard.press("Tab")
        assert page.evaluate("() => document.activeElement.className") == "skip"
        _tab_to(page, "document.activeElement.id === 'theme'")
        assert page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle") != "none"
        page.keyboard.press("Enter")
        opened.drawn("dark")
        _tab_to(page, "document.activeElement.matches('.folded > summary')")
        folded = "document.activeElement.parentElement"
        assert page.evaluate(f"() => {folded}.open") is False
        page.keyboard.press("Enter")
        assert page.evaluate(f"() => {folded}.open") is True
        opened.drawn()
        assert page.evaluate(f"() => {folded}.querySelector('.plot').data.length") > 0
        page.keyboard.press("Enter")
        assert page.evaluate(f"() => {folded}.open") is False


def test_plots_are_walked_zoomed_and_announced_by_keys(browser: Any, files: dict[str, Path]) -> None:
    with Opened(browser, files["rivals"]) as opened:
        page = opened.drawn()
        plot = "document.getElementById('every-step-plot')"
        _tab_to(page, "document.activeElement.id === 'every-step-plot'")
        assert "marks" in page.evaluate(f"() => getComputedStyle({plot}, '::after').content")
        page.keyboard.press("ArrowRight")
        first = _announced(page, "")
        page.keyboard.press("ArrowRight")
        second = _announced(page, first)
        page.keyboard.press("ArrowLeft")
        assert _announced(page, second) == first
        page.keyboard.press("ArrowDown")
        other = _announced(page, first)
        names = page.evaluate(f"() => {plot}._fullData.map(trace => trace.name)")
        assert [name for name in names if name in first] != [name for name in names if name in other]
        width = f"(() => {{ const [low, high] = {plot}._fullLayout.xaxis.range; return high - low; }})()"
        whole = page.evaluate(width)
        page.keyboard.press("+")
        page.wait_for_function(f"{width} < {0.6 * whole}")
        assert page.evaluate(width) == pytest.approx(whole / 2)
        page.keyboard.press("0")
        page.wait_for_function(f"{width} > {0.9 * whole}")
        assert page.evaluate(width) == pytest.approx(whole)
        assert opened.complaints == []


def _announced(page: Any, before: str) -> str:
    """What is told to a screen reader, once it is something else."""
    page.wait_for_function("before => !['', before].includes(document.getElementById('said').textContent)", arg=before)
    text: str = page.evaluate("() => document.getElementById('said').textContent")
    return text


def _tab_to(page: Any, condition: str, most: int = 80) -> None:
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate(f"() => {condition}"):
            return
    raise AssertionError(f"{most} tabs did not reach {condition}")


def _colours(page: Any) -> list[str]:
    found: list[str] = page.evaluate(
        "() => { const plot = document.getElementById('time-per-sample-plot');"
        " return [plot._fullLayout.font.color, plot._fullData[0].marker.color.join(),"
        " getComputedStyle(document.body).backgroundColor]; }"
    )
    return found


def test_dark_changes_the_plots_too_and_the_button_changes_back(
    browser: Any, files: dict[str, Path], rivals: Any
) -> None:
    light = _colours(rivals)
    with Opened(browser, files["rivals"], color_scheme="dark") as opened:
        page = opened.drawn("dark")
        dark = _colours(page)
        page.screenshot(path=SCREENSHOTS / "rivals-dark.png", full_page=True)
        page.locator("#theme").click()
        opened.drawn("light")
        assert _colours(page) == light
        assert opened.complaints == []
    assert all(one != other for one, other in zip(light, dark, strict=True))


def test_paper_is_light_unfolded_and_narrow_enough(browser: Any, files: dict[str, Path]) -> None:
    with Opened(browser, files["rivals"], color_scheme="dark") as opened:
        page = opened.drawn()
        page.emulate_media(media="print", color_scheme="dark")
        opened.drawn("paper")
        assert page.evaluate("() => document.documentElement.dataset.theme") == "light"
        assert not page.locator("nav").is_visible()
        assert not page.locator("#theme").is_visible()
        assert page.evaluate("() => document.querySelectorAll('details:not(.bulk):not([open])').length") == 0
        widths = page.evaluate("() => [...document.querySelectorAll('.plot .main-svg')].map(plot => plot.clientWidth)")
        assert max(widths) <= 680
        printed = page.pdf(path=SCREENSHOTS / "rivals.pdf", format="A4")
        assert printed.startswith(b"%PDF")
        page.emulate_media(media="screen", color_scheme="dark")
        opened.drawn("screen")
        assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"


def test_without_scripts_the_numbers_are_there(browser: Any, files: dict[str, Path]) -> None:
    with Opened(browser, files["rivals"], java_script_enabled=False) as opened:
        text = opened.page.locator("#times").inner_text()
        (record,) = records("rivals")
        assert all(mode in text for mode in record.modes)
        assert opened.page.locator("noscript").count() == 1
        assert not opened.page.locator("#theme").is_visible()
