"""The report in a real browser: it opens offline, fits a desktop and a phone, light and dark, with its numbers.

`make browser` sets Chromium and playwright up, runs this, and keeps screenshots and the report it looked at.
"""

import csv
import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from comparison.conftest import write_text_to_learn
from comparison.simulated import fill, only, tiny
from comparison.test_report import ROWS, law

from heddle.comparison import load_comparison
from heddle.comparison.report import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or find_spec("playwright") is None,
    reason="no Chromium or no playwright here; make browser installs both and runs this test",
)
KEPT = "HEDDLE_SCREENSHOTS"  # a folder for the screenshots and the report
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report of a comparison with all sections."""
    folder = tmp_path_factory.mktemp("browser")
    write_text_to_learn(folder)
    suite = only(tiny("narang", folder / "text.txt", ("budget.steps", 40), ("arms", "tokens,rate")), *ROWS)
    fill(suite, folder / "out", law)
    path = write_report(load_comparison(suite, folder / "out"), "heddle compare narang")
    if KEPT in os.environ:
        shutil.copy(path, Path(os.environ[KEPT]) / "report.html")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return a browser without a network."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as drivers:
        started = drivers.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_report_fits_the_screen_and_asks_for_nothing(
    browser: Any, report: Path, size: dict[str, int], scheme: str
) -> None:
    context = browser.new_context(viewport=size, color_scheme=scheme, offline=True)
    page, asked, said = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.goto(report.as_uri())
    assert asked == [report.as_uri()] and said == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
    light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light == (scheme == "light")
    assert page.locator("svg").count() == len(list((report.parent / "figures").glob("*.svg")))
    unlike = page.evaluate(CONTRAST)
    assert not unlike, f"hard to read: {unlike}"
    assert page.evaluate(CUT_OFF) == []
    if KEPT in os.environ:
        name = f"{'phone' if size is PHONE else 'desktop'}-{scheme}.png"
        page.screenshot(path=str(Path(os.environ[KEPT]) / name), full_page=True)
    context.close()


# Texts whose colour is less than 4.5 times as light or dark as the page.
CONTRAST = """() => {
  const light = rgb => { const [r, g, b] = rgb.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const page = light(getComputedStyle(document.body).backgroundColor);
  const low = new Set();
  for (const one of document.querySelectorAll("p, td, th, h1, h2, h3, li, svg text")) {
    const style = getComputedStyle(one), ink = light(one.closest("svg") ? style.fill : style.color);
    if ((Math.max(ink, page) + 0.05) / (Math.min(ink, page) + 0.05) < 4.5) low.add(one.textContent.slice(0, 40));
  }
  return [...low];
}"""
# Labels of figures that reach beyond the figure.
CUT_OFF = """() => [...document.querySelectorAll("svg text")].filter(one => {
  const box = one.getBBox(), frame = one.ownerSVGElement.viewBox.baseVal;
  return box.x < -1 || box.x + box.width > frame.width + 1 || box.y < -1 || box.y + box.height > frame.height + 1;
}).map(one => one.textContent)"""


def test_numbers_in_the_browser_are_those_of_the_results(browser: Any, report: Path) -> None:
    page = browser.new_page()
    page.goto(report.as_uri())
    rows = list(csv.DictReader((report.parent / "results.csv").read_text().splitlines()))
    for variant in ("elu", "geglu", "vanilla-transformer"):
        losses = [float(row["loss_test"]) for row in rows if row["variant"] == variant and row["arm"] == "tokens"]
        shown = page.locator(f"tr[data-variant='{variant}'] td").nth(2).inner_text()
        assert shown.startswith(f"{sum(losses) / len(losses):.4f} ±")
    page.locator("tr[data-variant='geglu'] summary").click()
    assert "gated_feed_forward(hidden=32" in page.locator("tr[data-variant='geglu'] details").inner_text()
    page.close()


def test_each_figure_opens_as_a_file(browser: Any, report: Path) -> None:
    page = browser.new_page(color_scheme="dark")
    for path in (report.parent / "figures").glob("*.svg"):
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.tagName") == "svg", path
        assert page.evaluate("document.querySelectorAll('text').length") > 3, path
    page.close()
